// Tensors of a module on the axes of a mesh: plain ones become replicated, distributed ones replicated over
// the axes that they are not on yet.
#pragma once

#include <ATen/core/Tensor.h>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch::internal {

// Throws ValueError if the tensor is distributed over a mesh that has no axes in common with what `mesh` was
// cut from. Communicates nothing.
MESHTORCH_FOR_PYTHON void check_replicates_over(const at::Tensor& tensor, const DeviceMesh& mesh);

// The tensor with the axes of `mesh`: that of the first ranks along them. Undefined if it has them already.
MESHTORCH_FOR_PYTHON at::Tensor replicated_over(const at::Tensor& tensor, const DeviceMesh& mesh);

}  // namespace meshtorch::internal
