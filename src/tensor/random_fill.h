// Fills this rank's shard with random numbers that depend on global indices only.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distribution.h"
#include "mesh/layout.h"

namespace meshtorch::internal {

// Fills the shard `local` of a tensor of global shape `sizes`. The layout must hold no pending reductions.
void fill_random(const at::Tensor& local, c10::IntArrayRef sizes, const Layout& layout,
                 const RandomCall& call, const Distribution& distribution);

}  // namespace meshtorch::internal
