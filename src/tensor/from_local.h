// Making a distributed tensor of the shards that the ranks have.
#pragma once

#include "core/shard.h"
#include "mesh/layout.h"
#include "meshtorch/dtensor.h"

namespace meshtorch {

// The global shape of shards that all have the shape of this rank's.
Shape shape_of_equal_shards(c10::IntArrayRef local, const Layout& layout);

// The global shape, found by exchanging the sizes of all shards. Throws the same error on every rank of the
// mesh if they do not fit the layout, or the `claimed` shape.
Shape shape_of_checked_shards(const at::Tensor& local, const Layout& layout,
                              const std::optional<Shape>& claimed);

// If the shards of the tensor were only assumed to be equal, the ranks compare them, all of them and once;
// shards that do not fit are an error on every rank.
void compare_if_assumed(const at::Tensor& tensor);

// This rank's local tensor of `tensor` under another layout, as redistribute_local gives it, after
// compare_if_assumed().
at::Tensor local_under(const at::Tensor& tensor, const Layout& to);
// The same with every axis replicated: the whole tensor.
at::Tensor whole_local(const at::Tensor& tensor);

}  // namespace meshtorch
