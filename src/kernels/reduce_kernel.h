// Elementwise reduction of plain memory, vectorised.
#pragma once

#include <c10/core/ScalarType.h>

#include <cstddef>
#include <span>

#include "meshtorch/placement.h"

namespace meshtorch::internal {

// True if reduce_memory knows the type.
bool has_reduce_kernel(c10::ScalarType type);

// out[i] = terms[0][i] op terms[1][i] op …, in this order, so that all ranks get the same bits. `out` may be
// one of the terms. Half precision accumulates in float and is rounded once.
void reduce_memory(char* out, std::span<const char* const> terms, std::size_t bytes, c10::ScalarType type,
                   ReduceOp op);

}  // namespace meshtorch::internal
