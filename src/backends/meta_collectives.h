// Collectives on tensors without data, for the fake backend.
#pragma once

#include <torch/library.h>

namespace meshtorch::internal {

// Registers c10d's operators for tensors on the meta device, where LibTorch has no kernels.
void add_meta_collectives(torch::Library& meta_key);

}  // namespace meshtorch::internal
