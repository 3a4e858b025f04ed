// A tensor whose data is still under way: shape and type are known, the first use waits.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>

namespace meshtorch::internal {

// A contiguous tensor of this shape. `finish` blocks until the data is there and gives it, of the same shape;
// it runs once, at the first use of the data. If it throws, so does every use of the data.
at::Tensor make_pending(c10::IntArrayRef sizes, const at::TensorOptions& options,
                        std::function<at::Tensor()> finish);

// Whether the data of `tensor` has not been asked for yet.
bool is_pending_tensor(const at::Tensor& tensor);
// Waits if the tensor is pending; from then on it is a plain tensor.
void wait_pending(const at::Tensor& tensor);

}  // namespace meshtorch::internal
