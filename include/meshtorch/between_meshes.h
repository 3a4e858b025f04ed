// Tensors and modules that go from one mesh to another: DTensor::redistribute(mesh, placements) of many, and
// what it will cost.
#pragma once

#include <functional>
#include <string>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/dtensor.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {

// The steps, bytes and peak memory of a redistribution to another mesh, without running it. Every rank of
// either mesh takes part in one; a rank in neither gets a stand-in and communicates nothing. Each element is
// sent once to each rank that lacks it.
MESHTORCH_API std::string explain_redistribute(const DTensor& tensor, const DeviceMesh& mesh,
                                               const Placements& placements);

// How a parameter or buffer of this name is to lie on the new mesh.
using PlacementsFn = std::function<Placements(const std::string& name, const DTensor& tensor)>;

// Brings the distributed parameters and buffers of a module, with their gradients, to another mesh, in place:
// they stay the same objects. Without `placements` they keep theirs, which needs a mesh of as many axes.
// Every rank of the meshes must call it. The state of an optimizer stays where it is: make the optimizer
// afterwards, or load its state from a checkpoint.
MESHTORCH_API void move_module(torch::nn::Module& module, const DeviceMesh& mesh,
                               const PlacementsFn& placements = {});

}  // namespace meshtorch
