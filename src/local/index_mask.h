// Indices into a split dim: each rank looks up those it holds, and gives zero for the others; or writes to
// those it holds, and drops what is meant for others.
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

// Shifts the indices likewise. Those that lie elsewhere name one more row, which this adds to the table.
void add_row_for_elsewhere(const IndexMask& mask, c10::IValue& table, c10::IValue& indices);
// The table without that row.
at::Tensor without_row(const IndexMask& mask, const at::Tensor& table);

}  // namespace meshtorch::internal
