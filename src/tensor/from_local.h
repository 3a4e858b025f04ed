// Making a distributed tensor of the shards that the ranks have.
#pragma once

#include "core/shard.h"
#include "meshtorch/dtensor.h"
#include "tensor/layout.h"

namespace meshtorch {

// The global shape of shards that all have the shape of this rank's.
Shape shape_of_equal_shards(c10::IntArrayRef local, const Layout& layout);

// The global shape, found by exchanging the sizes of all shards. Throws the same error on every rank of the mesh if they do not fit the
// layout, or the `claimed` shape.
Shape shape_of_checked_shards(const at::Tensor& local, const Layout& layout, const std::optional<Shape>& claimed);

}  // namespace meshtorch
