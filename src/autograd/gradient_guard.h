// Gradients of distributed tensors are distributed, also where LibTorch's formulas make plain zeros.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshtorch {

// The same tensor; a plain gradient that comes back to it becomes a replicated one.
at::Tensor guard_gradient(const at::Tensor& tensor);

}  // namespace meshtorch
