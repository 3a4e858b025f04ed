// Elementwise reduction of the terms of several ranks, and which reductions a type allows.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <span>
#include <string_view>
#include <vector>

#include "meshtorch/placement.h"

namespace meshtorch::internal {

// meshtorch's name for it; throws if there is none.
ReduceOp to_reduce_op(c10d::ReduceOp::RedOpType op);
std::string_view reduce_op_name(c10d::ReduceOp::RedOpType op);

// Throws, before anything is sent, if `op` is not defined for the type of one of the tensors.
void check_reducible(c10d::ReduceOp::RedOpType op, at::TensorList tensors);

// out = terms[0] op terms[1] op …, in this order on every rank, so that all get the same bits. `out` may be
// one of the terms. Half precision types accumulate in float.
void reduce_into(const at::Tensor& out, const std::vector<at::Tensor>& terms, c10d::ReduceOp::RedOpType op);
// The same of that many bytes of plain memory.
void reduce_bytes(char* out, std::span<const char* const> terms, std::size_t bytes, at::ScalarType type,
                  ReduceOp op);

}  // namespace meshtorch::internal
