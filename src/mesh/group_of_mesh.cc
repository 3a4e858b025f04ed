// Groups that meshes name.
#include "meshtorch/group.h"

#include "mesh/mesh_impl.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch {
using namespace internal;

Group::Group(const DeviceMesh& mesh) : Group(mesh.get_group()) {}
Group::Group(const DeviceMesh& mesh, std::int64_t axis) : Group(mesh.get_group(axis)) {}
Group::Group(const DeviceMesh& mesh, const std::string& axis) : Group(mesh.get_group(axis)) {}
Group::Group(std::initializer_list<std::int64_t> ranks) : Group(std::vector<std::int64_t>(ranks)) {}

Group::Group(const std::vector<std::int64_t>& ranks) {
  // A mesh of one axis checks the ranks.
  impl_ = MeshImpl::get(c10::DeviceType::CPU, ranks, {static_cast<std::int64_t>(ranks.size())}, {})
              ->group({0})
              .impl_;
}

}  // namespace meshtorch
