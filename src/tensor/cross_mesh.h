// Carries a tensor from one mesh to another: reductions on the first, one exchange between the ranks of both.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/shard.h"
#include "mesh/layout.h"
#include "redistribute/plan.h"

namespace meshtorch::internal {

// The steps, of which the last is the exchange if anything travels. Pending axes are reduced on the first
// mesh, to the layout from which the way is cheapest. The same on every rank.
Plan plan_between_meshes(const Shape& shape, std::int64_t item_size, const Layout& from, const Layout& to);

// This rank's local tensor under `to`, given the one under `from`, a layout of another mesh. Every rank of
// either mesh has to call it; others may. A rank outside of a mesh holds a stand-in there.
at::Tensor cross_local(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to);

// Throws the same error on every rank of the two meshes if they do not all see a tensor of one shape. For
// shapes that each rank concluded by itself.
void compare_shapes(const Shape& shape, const Layout& from, const Layout& to);

}  // namespace meshtorch::internal
