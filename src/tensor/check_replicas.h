// Comparing local tensors that should be equal, where somebody asked for it.
#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/layout.h"

namespace meshtorch::internal {

// Whether a CheckReplicas lives on this thread.
bool replicas_are_checked();

// Throws, on all ranks that should hold the same, if they do not.
void check_equal_replicas(const at::Tensor& local, const Layout& layout, const std::string& what);

}  // namespace meshtorch::internal
