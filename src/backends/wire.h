// How tensors travel: backends know few element types, so that some go as bytes or as a wider type.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <vector>

#include "meshtorch/placement.h"

namespace meshtorch::internal {

// Waits for a tensor that is pending. Throws for one without memory to send: distributed, sparse, undefined.
void wait_for_memory(const at::Tensor& t);
// Whether memory holds the elements one after another as they are: no gaps, no sign that is still to be
// turned.
bool lies_in_order(const at::Tensor& t);
// What a c10d call needs: no graph, no gaps, nothing pending, at least one dim.
at::Tensor prepared(const at::Tensor& t);
// The same for memory that is only read: the dims stay as they are.
at::Tensor readable(const at::Tensor& t);
// A copy of its own, with no graph, no gaps and nothing pending.
at::Tensor writable_copy(const at::Tensor& t);

// A contiguous tensor to be moved, and back. A type that backends do not know travels as bytes, in one more
// dim at the end.
at::Tensor as_cargo(const at::Tensor& t);
at::Tensor from_wire_bytes(const at::Tensor& bytes, at::ScalarType type);

// A reduction as every backend can do it.
class WireReduction {
 public:
  // Throws, before anything is sent, if `op` is not defined for the type of one of the tensors, which all
  // have one type.
  // A backend that averages by itself is asked to do so.
  WireReduction(ReduceOp op, at::TensorList tensors, int group_size, bool backend_averages = false);

  // What is asked of the backend: averages travel as sums, bool as bytes, complex numbers as pairs (one more
  // dim at the end).
  c10d::ReduceOp::RedOpType op() const { return op_; }
  at::Tensor encode(const at::Tensor& contiguous) const;
  // The result from the reduced tensor, which it may overwrite.
  at::Tensor decode(at::Tensor reduced) const;

 private:
  c10d::ReduceOp::RedOpType op_;
  at::ScalarType type_;
  double divisor_ = 1;
};

}  // namespace meshtorch::internal
