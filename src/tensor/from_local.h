// Making a distributed tensor of the shards that the ranks have.
#pragma once

#include "core/shard.h"
#include "mesh/layout.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/group.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// The global shape of shards that all have the shape of this rank's.
Shape shape_of_equal_shards(c10::IntArrayRef local, const Layout& layout);

// The global shape, found by exchanging the sizes of all shards. Throws the same error on every rank of the
// mesh if they do not fit the layout, or the `claimed` shape.
Shape shape_of_checked_shards(const at::Tensor& local, const Layout& layout,
                              const std::optional<Shape>& claimed);

// Whether ranks compare what they give under Replicate, or each takes its own: gradients are taken, and
// results that every rank has computed for itself.
enum class ReplicaValues : std::uint8_t { compared, taken };

// DTensor::from_local.
DTensor made_of_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                      const FromLocalOptions& options, ReplicaValues values);

// The rows that all ranks of the group give, in its order. Not counted: the user did not ask for it.
at::Tensor gather_rows_quietly(const at::Tensor& row, const Group& group);

// What is assumed of a tensor of this shape that from_local made of `local`.
AssumedShapePtr assume(const at::Tensor& local, const Layout& layout, const Shape& shape);
// What is assumed of a tensor that was computed of two; null for what is known.
AssumedShapePtr assume_both(const AssumedShapePtr& a, const AssumedShapePtr& b);
// The ranks compare the shards of which the shape was concluded; shards that do not fit are an error on every
// rank. Does nothing the second time.
void compare_assumed(const AssumedShapePtr& assumed);

// This rank's local tensor of `tensor` under another layout, as redistribute_local gives it, after what is
// assumed of it was compared.
at::Tensor local_under(const at::Tensor& tensor, const Layout& to);
// The same of an operand, which was refreshed when it was collected.
at::Tensor fresh_local_under(const at::Tensor& tensor, const Layout& to);
// The same of whatever an operator meets: a plain tensor is equal on all ranks.
at::Tensor local_as(const at::Tensor& tensor, const Layout& to);
// Of a distributed one, with every axis replicated: the whole tensor.
at::Tensor whole_local(const at::Tensor& tensor);

}  // namespace meshtorch::internal
