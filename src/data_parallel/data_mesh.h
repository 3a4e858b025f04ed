// The axes of a mesh over which batches are split: one that holds copies of a model, one that holds its
// shards.
#pragma once

#include <optional>

#include "mesh/mesh_impl.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch::internal {

struct DataMesh {
  DeviceMesh mesh;
  std::optional<std::size_t> replicate_axis;
  std::optional<std::size_t> shard_axis;

  // Nothing is sent by ranks outside the mesh.
  bool takes_part() const { return impl_of(mesh).coordinate().has_value(); }
  // This rank's group along an axis; nothing if there is nobody to talk to.
  std::optional<Group> group(const std::optional<std::size_t>& axis) const {
    if (!axis || !takes_part() || mesh.shape()[*axis] == 1) return std::nullopt;
    return impl_of(mesh).group({static_cast<int>(*axis)});
  }
  std::int64_t shards() const { return shard_axis ? mesh.shape()[*shard_axis] : 1; }
  std::int64_t shard_index() const {
    return shard_axis && takes_part() ? (*impl_of(mesh).coordinate())[*shard_axis] : 0;
  }
};

}  // namespace meshtorch::internal
