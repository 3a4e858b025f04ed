// What is asked of a plain tensor that is to become distributed.
#pragma once

#include <ATen/core/Tensor.h>

#include "runtime/transforms.h"

namespace meshtorch::internal {

// Throws ValueError or NotImplementedError that names `where`, such as "from_local".
inline void check_dense(const at::Tensor& tensor, const char* where) {
  TORCH_CHECK_VALUE(tensor.defined(), "meshtorch: an undefined tensor cannot be distributed\n  in: ", where,
                    "\n  do: give a tensor, of no elements where a rank has none");
  check_untransformed(tensor, where);
  const bool is_dense = tensor.layout() == at::kStrided && !tensor.is_quantized() && !tensor.is_nested();
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_dense, "meshtorch: distributed tensors are dense, and this one is not\n  in: ", where, ", given ",
      tensor.scalar_type(), ", layout ", tensor.layout(), "\n  do: give to_dense() or dequantize() of it");
}

}  // namespace meshtorch::internal
