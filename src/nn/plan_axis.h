// The axis of a mesh along which a plan makes a model parallel.
#pragma once

#include <string>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch::internal {

// The axis of this name; without one, the only axis of the mesh, or the one named "tp". Throws ValueError.
MESHTORCH_FOR_PYTHON DeviceMesh one_axis_of(const DeviceMesh& mesh, const std::string& axis);

}  // namespace meshtorch::internal
