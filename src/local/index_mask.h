// A look-up in a split dim: each rank looks up the indices it holds, and gives zero for the others.
#pragma once

#include <ATen/core/Tensor.h>
#include <ATen/core/ivalue.h>

#include "operator/decision.h"

namespace meshtorch::internal {

// Shifts the indices into this rank's part of the table. Gives which of them lie elsewhere, with the dims
// that the result begins with; those look up row 0, and an empty table gets one row of zeros for that.
at::Tensor apply_mask(const IndexMask& mask, c10::IValue& table, c10::IValue& indices);

// Sets the rows of `result` whose index lies elsewhere to zero.
void clear_rows(const at::Tensor& result, const at::Tensor& elsewhere);

}  // namespace meshtorch::internal
