// Meshes that are cut from a mesh: along some of its axes, along several as one, and put together again.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "mesh/mesh_impl.h"

namespace meshtorch::internal {

// A mesh and the one that it was cut from: itself, if from none. Handles hold both, since meshes of equal
// content are one mesh, whatever they were cut from.
struct Submesh {
  std::shared_ptr<MeshImpl> mesh;
  std::shared_ptr<MeshImpl> root;
};

Submesh slice_along(const Submesh& from, const MeshImpl::Names& names);
Submesh flattened(const Submesh& from, const std::string& name);
Submesh unflattened(const Submesh& from, std::int64_t axis, const MeshImpl::Numbers& sizes,
                    const MeshImpl::Names& names);
// The axes of all of these, which were cut from meshes of the same ranks.
Submesh concatenated(const std::vector<Submesh>& meshes);

}  // namespace meshtorch::internal
