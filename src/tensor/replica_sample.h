// What a tensor holds alike on several ranks, shown in parts to the groups that compare it.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/call_subject.h"
#include "core/shard.h"
#include "mesh/layout.h"

namespace meshtorch::internal {

// Says that the ranks along the axes that are called Replicate hold equal values in `local`, of a tensor of
// this global shape. Their next collective compares a sample of it, and every few collectives after that a
// part of it, as long as it lives. Nothing is compared below the level of agreement `on`.
void declare_replica(const at::Tensor& local, const Layout& layout, const TensorOrigin& origin,
                     const Shape& shape);

}  // namespace meshtorch::internal
