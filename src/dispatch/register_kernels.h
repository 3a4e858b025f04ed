// What the list of registrations takes from the files that hold the kernels.
#pragma once

#include <torch/library.h>

namespace meshtorch::internal {

// The operators that programs call most, past the boxed kernel. (direct.cc)
void add_direct_kernels(torch::Library& mesh_key);
// Shapes of operators for which LibTorch has a meta kernel in Python only. (meta_kernels.cc)
void add_meta_kernels(torch::Library& meta_key);

}  // namespace meshtorch::internal
