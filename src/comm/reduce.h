// Elementwise reduction of the terms of several ranks, and which reductions a type allows.
#pragma once

#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string_view>
#include <vector>

namespace meshtorch {

std::string_view reduce_op_name(c10d::ReduceOp::RedOpType op);

// Throws, before anything is sent, if `op` is not defined for the type of one of the tensors.
void check_reducible(c10d::ReduceOp::RedOpType op, const std::vector<at::Tensor>& tensors);

// out = terms[0] op terms[1] op …, in this order on every rank, so that all get the same bits. `out` may be
// one of the terms. Half precision types accumulate in float.
void reduce_into(const at::Tensor& out, const std::vector<at::Tensor>& terms, c10d::ReduceOp::RedOpType op);

}  // namespace meshtorch
