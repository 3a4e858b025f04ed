// Gradients of distributed tensors are distributed, also where LibTorch's formulas make plain zeros.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshtorch::internal {

// For the result of an operator on distributed tensors: plain gradients that the operator's derivative gives
// become replicated ones.
void guard_gradients(const at::Tensor& result);

}  // namespace meshtorch::internal
