// Carries out a redistribution plan on this rank's local tensor.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/shard.h"
#include "mesh/layout.h"
#include "redistribute/plan.h"

namespace meshtorch::internal {

// The plan from one layout to another of the same mesh, from the cache.
std::shared_ptr<const Plan> plan_between(const Shape& shape, std::int64_t item_size, const Layout& from,
                                         const Layout& to);

// This rank's local tensor under `to`, given the one under `from`, of the same mesh or another one. The
// result may share memory with `local`, and may be pending. Throws if `local` is not the shard that the
// layout says.
at::Tensor redistribute_local(const at::Tensor& local, const Shape& shape, const Layout& from,
                              const Layout& to);

}  // namespace meshtorch::internal
