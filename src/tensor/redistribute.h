// Redistribution as a differentiable function of distributed tensors.
#pragma once

#include <ATen/core/Tensor.h>

#include "mesh/layout.h"
#include "meshtorch/dtensor.h"

namespace meshtorch::internal {

// How the gradient of a tensor lies: like the tensor, whole where it is a pending reduction.
Placements gradient_placements(const Placements& placements);

at::Tensor redistribute_tensor(const at::Tensor& tensor, const Layout* to,
                               const RedistributeOptions& options);
// The same and to_local() in one node of the graph.
at::Tensor redistribute_to_local(const at::Tensor& tensor, const Layout* to,
                                 const RedistributeOptions& options);

}  // namespace meshtorch::internal
