// What a DeviceMesh holds. One for each content and rank, so that equality is a pointer.
#pragma once

#include <c10/core/DeviceType.h>

#include <array>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "comm/backend_traits.h"
#include "comm/rank_context.h"
#include "core/mesh_axes.h"
#include "mesh/attachment.h"
#include "mesh/layout.h"
#include "meshtorch/axis_cost.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch::internal {

class MeshImpl : public std::enable_shared_from_this<MeshImpl> {
 public:
  using Numbers = std::vector<std::int64_t>;
  using Names = std::vector<std::string>;

  // Checks the arrangement and gives this rank's one mesh of that content. `root` is the mesh it was cut
  // from, in which it runs along `axes`.
  static std::shared_ptr<MeshImpl> get(c10::DeviceType device_type, Numbers ranks, Numbers shape, Names names,
                                       std::shared_ptr<MeshImpl> root = nullptr, MeshAxes axes = {});
  // The mesh of one axis along a group; uses that group and makes none.
  static std::shared_ptr<MeshImpl> of_group(const Group& group, c10::DeviceType device_type, Names names);

  c10::DeviceType device_type() const { return device_type_; }
  const Numbers& ranks() const { return ranks_; }
  // Those of the mesh that it was cut from: the ranks of the program.
  const Numbers& ranks_of_root() const { return root().ranks_; }
  const Numbers& shape() const { return shape_; }
  const Names& names() const { return names_; }
  const std::optional<Numbers>& coordinate() const { return coordinate_; }
  std::int64_t world_rank() const { return world_rank_; }
  const std::string& content() const { return content_; }
  const BackendTraits& backend() const { return *backend_; }

  // Whether the world that the mesh was made in has been destroyed.
  bool is_left() const;

  std::size_t axis_index(std::int64_t axis) const;
  std::int64_t axis_named(const std::string& name) const;

  // The group of this rank along several axes (ascending), in row-major order of their coordinates.
  Group group(const std::vector<int>& axes) const;
  std::shared_ptr<MeshImpl> sub_mesh(const Names& names);
  std::shared_ptr<MeshImpl> flatten(const std::string& name);
  // The mesh of the axes of both, which are cut from one mesh with names; null if they are not.
  std::shared_ptr<MeshImpl> joined_with(MeshImpl& other);
  std::shared_ptr<MeshImpl> unflatten(std::int64_t axis, const Numbers& sizes, const Names& names);
  // The axes of all of these, which were cut from meshes of the same ranks.
  static std::shared_ptr<MeshImpl> concatenate(const std::vector<std::shared_ptr<MeshImpl>>& meshes);

  // What communication costs on each axis, for plans and choices; the same on every rank.
  std::vector<AxisCost> axis_costs() const;
  void set_axis_cost(std::size_t axis, const AxisCost& cost);

  // The layouts of tensors on this mesh.
  const Layout* layout(const Placements& placements) { return layouts_.get(placements); }
  // The layout that is replicated on every axis.
  const Layout* replicated() { return layout(Placements(shape_.size())); }
  // Made at the first call.
  MeshAttachment& attachment(MeshAttachment::Slot slot, std::unique_ptr<MeshAttachment> (*make)()) {
    Attached& attached = attached_[static_cast<std::size_t>(slot)];
    std::call_once(attached.once, [&] { attached.attachment = make(); });
    return *attached.attachment;
  }

 private:
  MeshImpl() = default;
  // The mesh along these axes that holds this rank (coordinate 0 on the others if it is in none).
  Numbers ranks_along(const std::vector<int>& axes) const;
  MeshImpl& root() { return root_ ? *root_ : *this; }
  const MeshImpl& root() const { return root_ ? *root_ : *this; }
  bool has_slice(const MeshImpl& part);
  // The mesh along these axes of the root.
  std::shared_ptr<MeshImpl> along(MeshAxes axes, Names names);
  // The axis of this name: of this mesh, or one that was flattened. Null if there is none.
  std::optional<MeshAxis> find_axis(const std::string& name);

  c10::DeviceType device_type_{};
  Numbers ranks_;
  Numbers shape_;
  Names names_;
  std::string content_;
  const BackendTraits* backend_ = nullptr;
  std::int64_t world_rank_ = 0;
  std::optional<Numbers> coordinate_;
  std::shared_ptr<MeshImpl> root_;  // null for a mesh that was not cut from another
  MeshAxes axes_;                   // in the root
  std::weak_ptr<RankContext> context_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int>, Group> groups_;
  std::map<std::string, MeshAxis> flattened_;         // on the root, by name
  std::vector<std::pair<MeshAxis, AxisCost>> costs_;  // on the root, those that were set
  LayoutTable layouts_{*this};
  struct Attached {
    std::once_flag once;
    std::unique_ptr<MeshAttachment> attachment;
  };
  std::array<Attached, MeshAttachment::kSlots> attached_;
};

// What a DeviceMesh holds.
struct MeshAccess {
  static const std::shared_ptr<MeshImpl>& impl_of(const DeviceMesh& mesh) { return mesh.impl_; }
};
inline const std::shared_ptr<MeshImpl>& shared_impl_of(const DeviceMesh& mesh) {
  return MeshAccess::impl_of(mesh);
}
inline MeshImpl& impl_of(const DeviceMesh& mesh) { return *MeshAccess::impl_of(mesh); }

}  // namespace meshtorch::internal
