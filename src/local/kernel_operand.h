// What a kernel gets of an operand: the last step before the call of one rank.
#pragma once

#include <ATen/core/Tensor.h>

namespace meshtorch::internal {

// `local`, a rank's part of the operand `whole`, as a plain run would have it: contiguous where the whole is,
// else dense in the order of its dims where it is, since kernels may read memory raw; and a number where the
// whole is one, which decides the type of the result. A copy is made only where it lies otherwise.
at::Tensor as_kernel_operand(const at::Tensor& whole, at::Tensor local);

}  // namespace meshtorch::internal
