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

#include "backends/backend_traits.h"
#include "core/mesh_axes.h"
#include "mesh/layout.h"
#include "mesh/per_mesh_cache.h"
#include "meshtorch/api.h"
#include "meshtorch/axis_cost.h"
#include "meshtorch/device_mesh.h"
#include "world/rank_context.h"

namespace meshtorch::internal {

class MeshImpl;

// Where a mesh lies in one that it was cut from.
struct ParentLink {
  std::shared_ptr<MeshImpl> root;
  MeshAxes axes;
};

class MeshImpl : public std::enable_shared_from_this<MeshImpl> {
 public:
  using Numbers = std::vector<std::int64_t>;
  using Names = std::vector<std::string>;

  // Checks the arrangement and gives this rank's one mesh of that content, which is cut from `from` unless
  // that has no root.
  static std::shared_ptr<MeshImpl> get(c10::DeviceType device_type, Numbers ranks, Numbers shape, Names names,
                                       const ParentLink& from = {});
  // The mesh of one axis along a group; uses that group and makes none.
  static std::shared_ptr<MeshImpl> of_group(const Group& group, c10::DeviceType device_type, Names names);

  c10::DeviceType device_type() const { return device_type_; }
  const Numbers& ranks() const { return ranks_; }
  // Those of the mesh that it was cut from: the ranks of the program.
  Numbers ranks_of_root() { return first_root()->ranks_; }
  const Numbers& shape() const { return shape_; }
  const Names& names() const { return names_; }
  const std::optional<Numbers>& coordinate() const { return coordinate_; }
  std::int64_t world_rank() const { return world_rank_; }
  const std::string& content() const { return content_; }
  const BackendTraits& backend() const { return *backend_; }

  // Whether the world that the mesh was made in has been destroyed.
  bool is_left() const;
  // Whether it belongs to another rank than the calling one, where ranks are threads.
  bool is_of_another_rank() const { return is_another_rank(context_.lock().get()); }

  std::size_t axis_index(std::int64_t axis) const;
  std::int64_t axis_named(const std::string& name) const;

  // The group of this rank along several axes (ascending), in row-major order of their coordinates.
  Group group(const std::vector<int>& axes) const;
  // The world ranks of that group; of the one at coordinate 0 on the other axes if this rank is in none.
  Numbers ranks_along(const std::vector<int>& axes) const;

  // Where it lies in the meshes that it was cut from, in the order of that; a mesh that was made by itself
  // lies in itself. Equal content is one mesh, so that there may be several.
  std::vector<ParentLink> cuts();
  // Where it lies in this one of them, or in itself.
  ParentLink cut_in(const std::shared_ptr<MeshImpl>& root);
  // The first of them; itself only if there is no other.
  std::shared_ptr<MeshImpl> first_root();
  // The mesh of the axes of both, which have names and lie in meshes of the same ranks; null if they do not.
  std::shared_ptr<MeshImpl> joined_with(MeshImpl& other);

  // Of a mesh that others are cut from: the axis that was given this name by flattening.
  std::optional<MeshAxis> flattened_axis(const std::string& name) const;
  // Gives an axis a name; returns the axis that has it, which may be another one.
  MeshAxis name_axis(const std::string& name, const MeshAxis& axis);
  // The worst cost that was set for what the axis has in common with others, if any was.
  std::optional<AxisCost> cost_along(const MeshAxis& axis) const;

  // What communication costs on each axis, for plans and choices; the same on every rank.
  std::vector<AxisCost> axis_costs();
  void set_axis_cost(std::size_t axis, const AxisCost& cost);

  // The layouts of tensors on this mesh.
  const Layout* layout(const Placements& placements) { return layouts_.get(placements); }
  // The layout that is replicated on every axis.
  const Layout* replicated() { return layout(Placements(shape_.size())); }
  // Made at the first call.
  PerMeshCache& attachment(PerMeshCache::Slot slot, std::unique_ptr<PerMeshCache> (*make)()) {
    Attached& attached = attached_[static_cast<std::size_t>(slot)];
    std::call_once(attached.once, [&] { attached.attachment = make(); });
    return *attached.attachment;
  }

 private:
  MeshImpl() = default;
  void note_cut(const ParentLink& from);

  c10::DeviceType device_type_{};
  Numbers ranks_;
  Numbers shape_;
  Names names_;
  std::string content_;
  const BackendTraits* backend_ = nullptr;
  std::int64_t world_rank_ = 0;
  std::optional<Numbers> coordinate_;
  ParentLink made_from_;  // without a root if it was made by itself
  // Cut from again, when it was there. These may have been cut from it in turn: they are held by the world.
  std::vector<std::pair<std::weak_ptr<MeshImpl>, MeshAxes>> cut_later_;
  std::weak_ptr<RankContext> context_;
  mutable std::mutex mutex_;
  mutable std::map<std::vector<int>, Group> groups_;
  std::map<std::string, MeshAxis> flattened_;         // on the root, by name
  std::vector<std::pair<MeshAxis, AxisCost>> costs_;  // on the root, those that were set
  LayoutTable layouts_{*this};
  struct Attached {
    std::once_flag once;
    std::unique_ptr<PerMeshCache> attachment;
  };
  std::array<Attached, PerMeshCache::kSlots> attached_;
};

// "dp, tp"
std::string joined_names(const MeshImpl::Names& names, const char* separator);

// Of a mesh of this shape. Throws ValueError if an axis has none.
MESHTORCH_FOR_PYTHON std::int64_t count_of_ranks(const MeshImpl::Numbers& shape);

// What a DeviceMesh holds.
struct MeshAccess {
  static const std::shared_ptr<MeshImpl>& impl_of(const DeviceMesh& mesh) { return mesh.impl_; }
  // The handle of one that was cut from no other.
  static DeviceMesh made_by_itself(std::shared_ptr<MeshImpl> impl) {
    DeviceMesh mesh(std::move(impl));
    mesh.root_ = mesh.impl_;
    return mesh;
  }
};
inline const std::shared_ptr<MeshImpl>& shared_impl_of(const DeviceMesh& mesh) {
  return MeshAccess::impl_of(mesh);
}
inline MeshImpl& impl_of(const DeviceMesh& mesh) { return *MeshAccess::impl_of(mesh); }

}  // namespace meshtorch::internal
