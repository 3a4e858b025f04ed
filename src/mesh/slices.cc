// Meshes that are cut from a mesh, and the names that flattened axes have in it.
#include "mesh/slices.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>

namespace meshtorch::internal {
namespace {

using Numbers = MeshImpl::Numbers;
using Names = MeshImpl::Names;

// The mesh along these axes of the root that holds this rank.
Submesh along(const std::shared_ptr<MeshImpl>& root, MeshAxes axes, Names names) {
  const auto self = std::ranges::find(root->ranks(), root->world_rank());
  const auto start = self == root->ranks().end() ? 0 : self - root->ranks().begin();
  Numbers ranks;
  for (const std::int64_t position : positions_along(axes, start))
    ranks.push_back(root->ranks()[static_cast<std::size_t>(position)]);
  Numbers extents;
  for (const MeshAxis& axis : axes) extents.push_back(axis_extent(axis));
  return {MeshImpl::get(root->device_type(), std::move(ranks), std::move(extents), std::move(names),
                        {root, std::move(axes)}),
          root};
}

struct NamedAxis {
  std::string name;
  MeshAxis axis;
};

// Adds the axes of a mesh, as they lie in its root, to those of another. False if one of them has a name that
// another axis has.
bool add_axes(std::vector<NamedAxis>& all, const MeshImpl& mesh, const MeshAxes& axes) {
  for (std::size_t a = 0; a < axes.size(); ++a) {
    const auto known = std::ranges::find(all, mesh.names()[a], &NamedAxis::name);
    if (known == all.end()) {
      all.push_back({mesh.names()[a], axes[a]});
    } else if (known->axis != axes[a]) {
      return false;
    }
  }
  return true;
}

// Outer axes first; among axes of one rank, which may lie at one place, as in the root and else as they are.
void order_axes(std::vector<NamedAxis>& axes, const Names& of_root) {
  const auto place = [&](const NamedAxis& axis) {
    const MeshStep& outer = axis.axis.front();
    return std::tuple(-outer.stride, -outer.size, std::ranges::find(of_root, axis.name) - of_root.begin());
  };
  std::ranges::stable_sort(axes, std::ranges::less(), place);
}

// The mesh of the axes of both, which lie in roots of the same ranks; null if they overlap, or two axes share
// a name.
std::shared_ptr<MeshImpl> joined_in(const MeshImpl& one, const ParentLink& cut, const MeshImpl& other,
                                    const ParentLink& other_cut) {
  std::vector<NamedAxis> all;
  if (!add_axes(all, other, other_cut.axes) || !add_axes(all, one, cut.axes)) return nullptr;
  order_axes(all, cut.root->names());
  MeshAxes axes;
  Names names;
  for (NamedAxis& axis : all) {
    axes.push_back(std::move(axis.axis));
    names.push_back(std::move(axis.name));
  }
  const Numbers positions = positions_along(axes, 0);
  if (std::set(positions.begin(), positions.end()).size() != positions.size()) return nullptr;
  return along(cut.root, std::move(axes), std::move(names)).mesh;
}

}  // namespace

Submesh slice_along(const Submesh& from, const Names& names) {
  TORCH_CHECK_VALUE(!names.empty(),
                    "meshtorch: a slice of a mesh needs at least one axis name\n  do: name the axes to keep");
  const Names& own_names = from.mesh->names();
  if (names == own_names) return from;
  const MeshAxes own_axes = from.mesh->cut_in(from.root).axes;
  MeshAxes axes;
  std::int64_t last = -1;
  bool is_ordered = true;
  for (const std::string& name : names) {
    const bool is_own = std::ranges::find(own_names, name) != own_names.end();
    if (const auto named = is_own ? std::nullopt : from.root->flattened_axis(name)) {
      axes.push_back(*named);
      continue;
    }
    const std::int64_t own = from.mesh->axis_named(name);
    axes.push_back(own_axes[static_cast<std::size_t>(own)]);
    is_ordered &= own > last;
    last = own;
  }
  TORCH_CHECK_VALUE(
      is_ordered && are_in_order(axes),
      "meshtorch: the axes of a slice must keep the mesh's order\n  asked: ", joined_names(names, ", "),
      "\n  mesh: ", joined_names(own_names, ", "), "\n  do: name each axis once, in the mesh's order");
  return along(from.root, std::move(axes), names);
}

std::shared_ptr<MeshImpl> MeshImpl::joined_with(MeshImpl& other) {
  if (names_.empty() || other.names_.empty()) return nullptr;
  const auto cuts_and_itself = [](MeshImpl& mesh) {
    std::vector<ParentLink> all = mesh.cuts();
    const auto self = mesh.shared_from_this();
    if (std::ranges::find(all, self, &ParentLink::root) == all.end()) all.push_back(mesh.cut_in(self));
    return all;
  };
  const std::vector<ParentLink> its_cuts = cuts_and_itself(other);
  for (const ParentLink& cut : cuts_and_itself(*this)) {
    for (const ParentLink& its_cut : its_cuts) {
      if (cut.root->ranks_ != its_cut.root->ranks_) continue;
      if (auto joined = joined_in(*this, cut, other, its_cut)) return joined;
    }
  }
  return nullptr;
}

Submesh flattened(const Submesh& from, const std::string& name) {
  const Names& names = from.mesh->names();
  const Names& taken = from.root->names();
  const std::string flat_name = !name.empty() ? name : names.empty() ? "flat" : joined_names(names, "_");
  const bool is_taken = std::ranges::find(taken, flat_name) != taken.end();
  TORCH_CHECK_VALUE(!is_taken || names == Names{flat_name}, "meshtorch: an axis ", flat_name,
                    " already exists for submesh of the DeviceMesh with axes ", joined_names(taken, ", "),
                    "\n  do: choose another name for the flattened axis");
  if (names == Names{flat_name}) return from;
  const MeshAxis axis = joined_axis(from.mesh->cut_in(from.root).axes);
  const MeshAxis known = from.root->name_axis(flat_name, axis);
  TORCH_CHECK_VALUE(known == axis, "meshtorch: Flatten mesh with mesh_dim_name ", flat_name,
                    " has been created before, with ranks ",
                    c10::IntArrayRef(along(from.root, {known}, {flat_name}).mesh->ranks()),
                    "\n  do: choose another name");
  return along(from.root, {axis}, {flat_name});
}

Submesh unflattened(const Submesh& from, std::int64_t axis, const Numbers& sizes, const Names& names) {
  const MeshImpl& mesh = *from.mesh;
  const std::size_t a = mesh.axis_index(axis);
  const std::int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  TORCH_CHECK_VALUE(
      count == mesh.shape()[a] && std::ranges::all_of(sizes, [](std::int64_t s) { return s > 0; }),
      "meshtorch: an axis of ", mesh.shape()[a], " ranks cannot become axes of ", c10::IntArrayRef(sizes),
      " ranks\n  do: give sizes whose product is ", mesh.shape()[a]);
  TORCH_CHECK_VALUE(names.size() == (mesh.names().empty() ? 0 : sizes.size()), "meshtorch: ", sizes.size(),
                    " axes in the place of one got ", names.size(),
                    " names\n  do: give one name for each, or none to a mesh without names");
  const auto replaced = [&](auto all, const auto& parts) {
    const auto at = all.erase(all.begin() + static_cast<std::ptrdiff_t>(a));
    all.insert(at, parts.begin(), parts.end());
    return all;
  };
  const MeshAxes axes = from.mesh->cut_in(from.root).axes;
  const auto parts = split_axis(axes[a], sizes);
  auto made = MeshImpl::get(mesh.device_type(), mesh.ranks(), replaced(mesh.shape(), sizes),
                            mesh.names().empty() ? Names() : replaced(mesh.names(), names),
                            parts ? ParentLink{from.root, replaced(axes, *parts)} : ParentLink{});
  return {made, parts ? from.root : made};
}

Submesh concatenated(const std::vector<Submesh>& meshes) {
  TORCH_CHECK_VALUE(!meshes.empty(), "meshtorch: no mesh to concatenate\n  do: give at least one");
  MeshAxes axes;
  Names names;
  const auto& root = meshes[0].root;
  for (const Submesh& part : meshes) {
    TORCH_CHECK_VALUE(
        part.root->ranks() == root->ranks() && part.mesh->device_type() == meshes[0].mesh->device_type(),
        "meshtorch: meshes that were cut from different meshes cannot be concatenated\n  one: ",
        root->content(), "\n  other: ", part.root->content(), "\n  do: slice them from one mesh");
    const MeshAxes its_axes = part.mesh->cut_in(part.root).axes;
    axes.insert(axes.end(), its_axes.begin(), its_axes.end());
    names.insert(names.end(), part.mesh->names().begin(), part.mesh->names().end());
  }
  const Numbers positions = positions_along(axes, 0);
  TORCH_CHECK_VALUE(std::set(positions.begin(), positions.end()).size() == positions.size(),
                    "meshtorch: meshes that overlap cannot be concatenated\n  axes: ",
                    joined_names(names, ", "), "\n  do: name each axis once");
  return along(root, std::move(axes), std::move(names));
}

}  // namespace meshtorch::internal
