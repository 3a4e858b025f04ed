// Arrangements of ranks: checks, coordinates, groups along axes, slices.
#include "mesh/mesh_impl.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <functional>
#include <numeric>
#include <set>

namespace meshtorch::internal {
namespace {

using Numbers = MeshImpl::Numbers;
using Names = MeshImpl::Names;

std::string join(const Names& names, const char* separator) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : separator).append(name);
  return text;
}

std::string content_of(c10::DeviceType device_type, const Numbers& ranks, const Numbers& shape,
                       const Names& names) {
  return c10::str(c10::DeviceTypeName(device_type, true), "|", c10::IntArrayRef(shape), "|",
                  c10::IntArrayRef(ranks), "|", join(names, ","));
}

void check_names(const Names& names, const Numbers& shape) {
  TORCH_CHECK_VALUE(names.empty() || names.size() == shape.size(), "meshtorch: a mesh of ", shape.size(),
                    " axes has ", names.size(), " names (", join(names, ", "),
                    ")\n  do: give one name for each axis, or none");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(!name.empty(), "meshtorch: an axis name of a mesh is empty (", join(names, ", "),
                      ")\n  do: name every axis, or none");
    TORCH_CHECK_VALUE(seen.insert(name).second, "meshtorch: the axis name \"", name,
                      "\" is used twice in one mesh (", join(names, ", "),
                      ")\n  do: give each axis a name of its own");
  }
}

void check_ranks(const Numbers& ranks, const Numbers& shape, int world_size) {
  const std::int64_t count =
      std::accumulate(shape.begin(), shape.end(), std::int64_t{1}, std::multiplies<>());
  TORCH_CHECK_VALUE(!shape.empty() && count >= 1,
                    "meshtorch: a mesh needs at least one axis and one rank, not shape ",
                    c10::IntArrayRef(shape), "\n  do: list the ranks of the mesh");
  TORCH_INTERNAL_ASSERT(count == static_cast<std::int64_t>(ranks.size()));
  std::set<std::int64_t> seen;
  for (const std::int64_t rank : ranks) {
    TORCH_CHECK_VALUE(rank >= 0 && rank < world_size, "meshtorch: rank ", rank,
                      " of a mesh is not in the world of ", world_size, " ranks\n  do: use ranks from 0 to ",
                      world_size - 1);
    TORCH_CHECK_VALUE(seen.insert(rank).second, "meshtorch: rank ", rank,
                      " stands twice in one mesh\n  do: list each rank once");
  }
}

Numbers unravel(std::int64_t index, const Numbers& shape) {
  Numbers coordinate(shape.size());
  for (std::size_t axis = shape.size(); axis-- > 0;) {
    coordinate[axis] = index % shape[axis];
    index /= shape[axis];
  }
  return coordinate;
}

}  // namespace

std::shared_ptr<MeshImpl> MeshImpl::get(c10::DeviceType device_type, Numbers ranks, Numbers shape,
                                        Names names, std::shared_ptr<MeshImpl> root, MeshAxes axes) {
  const auto context = current_rank();
  check_names(names, shape);
  check_ranks(ranks, shape, context->world().size);
  const std::string content = content_of(device_type, ranks, shape, names);
  return context->intern(content, [&] {
    std::shared_ptr<MeshImpl> mesh(new MeshImpl());
    mesh->device_type_ = device_type;
    mesh->axes_ = root ? std::move(axes) : root_axes(shape);
    mesh->ranks_ = std::move(ranks);
    mesh->shape_ = std::move(shape);
    mesh->names_ = std::move(names);
    mesh->content_ = content;
    mesh->backend_ = &traits_of(context->world().backend);
    mesh->world_rank_ = context->world().rank;
    mesh->root_ = std::move(root);
    mesh->context_ = context;
    const auto self = std::find(mesh->ranks_.begin(), mesh->ranks_.end(), mesh->world_rank_);
    if (self != mesh->ranks_.end()) mesh->coordinate_ = unravel(self - mesh->ranks_.begin(), mesh->shape_);
    return mesh;
  });
}

std::shared_ptr<MeshImpl> MeshImpl::of_group(const Group& group, c10::DeviceType device_type, Names names) {
  const auto context = current_rank();
  const Numbers shape{group.size()};
  const auto known = context->find_group(group.ranks());
  if (known && known->process_group == group.process_group()) {
    return get(device_type, group.ranks(), shape, std::move(names));
  }
  // A group of the user's: nobody else can have this mesh, and c10d does not tell which ranks of the world it
  // has.
  check_names(names, shape);
  std::shared_ptr<MeshImpl> mesh(new MeshImpl());
  mesh->device_type_ = device_type;
  mesh->ranks_ = group.ranks();
  mesh->shape_ = shape;
  mesh->axes_ = root_axes(shape);
  mesh->content_ =
      content_of(device_type, group.ranks(), shape, names) + c10::str("|", group.process_group().get());
  mesh->names_ = std::move(names);
  mesh->backend_ = &traits_of(context->world().backend);
  mesh->world_rank_ = context->world().rank;
  mesh->context_ = context;
  mesh->coordinate_ = Numbers{group.rank()};
  mesh->groups_.emplace(std::vector<int>{0}, group);
  return mesh;
}

bool MeshImpl::is_left() const {
  const auto context = context_.lock();
  return !context || context->is_left();
}

std::size_t MeshImpl::axis_index(std::int64_t axis) const {
  const auto ndim = static_cast<std::int64_t>(shape_.size());
  TORCH_CHECK_INDEX(axis >= -ndim && axis < ndim, "meshtorch: a mesh of ", ndim, " axes has no axis ", axis,
                    "\n  do: give an axis from ", -ndim, " to ", ndim - 1);
  return static_cast<std::size_t>(axis < 0 ? axis + ndim : axis);
}

std::int64_t MeshImpl::axis_named(const std::string& name) const {
  const auto found = std::find(names_.begin(), names_.end(), name);
  TORCH_CHECK_VALUE(found != names_.end(), "meshtorch: the mesh has no axis \"", name, "\"\n  ",
                    names_.empty()
                        ? std::string("its axes have no names\n  do: give them names when the mesh is made")
                        : "its axes are " + join(names_, ", ") + "\n  do: use one of these names");
  return found - names_.begin();
}

Numbers MeshImpl::ranks_along(const std::vector<int>& axes) const {
  Numbers fixed = coordinate_.value_or(Numbers(shape_.size(), 0));
  Numbers extents;
  for (const int axis : axes) extents.push_back(shape_[static_cast<std::size_t>(axis)]);
  const std::int64_t count =
      std::accumulate(extents.begin(), extents.end(), std::int64_t{1}, std::multiplies<>());
  Numbers members;
  for (std::int64_t i = 0; i < count; ++i) {
    const Numbers along = unravel(i, extents);
    for (std::size_t a = 0; a < axes.size(); ++a) fixed[static_cast<std::size_t>(axes[a])] = along[a];
    std::int64_t index = 0;
    for (std::size_t a = 0; a < shape_.size(); ++a) index = index * shape_[a] + fixed[a];
    members.push_back(ranks_[static_cast<std::size_t>(index)]);
  }
  return members;
}

Group MeshImpl::group(const std::vector<int>& axes) const {
  const std::scoped_lock lock(mutex_);
  if (const auto found = groups_.find(axes); found != groups_.end()) return found->second;
  const auto context = context_.lock();
  TORCH_CHECK(context && !context->is_left(),
              "meshtorch: this mesh belongs to a world that was destroyed\n  do: make it again after "
              "init_process_group()");
  return groups_.emplace(axes, Group(context->group(ranks_along(axes)))).first->second;
}

std::shared_ptr<MeshImpl> MeshImpl::along(MeshAxes axes, Names names) {
  MeshImpl& top = root();
  const auto self = std::find(top.ranks_.begin(), top.ranks_.end(), world_rank_);
  const auto start = self == top.ranks_.end() ? 0 : self - top.ranks_.begin();
  Numbers ranks;
  for (const std::int64_t position : positions_along(axes, start))
    ranks.push_back(top.ranks_[static_cast<std::size_t>(position)]);
  Numbers extents;
  for (const MeshAxis& axis : axes) extents.push_back(axis_extent(axis));
  return get(device_type_, std::move(ranks), std::move(extents), std::move(names), top.shared_from_this(),
             std::move(axes));
}

std::optional<MeshAxis> MeshImpl::find_axis(const std::string& name) {
  const auto own = std::find(names_.begin(), names_.end(), name);
  if (own != names_.end()) return axes_[static_cast<std::size_t>(own - names_.begin())];
  MeshImpl& top = root();
  const std::scoped_lock lock(top.mutex_);
  const auto flattened = top.flattened_.find(name);
  return flattened == top.flattened_.end() ? std::nullopt : std::optional(flattened->second);
}

std::shared_ptr<MeshImpl> MeshImpl::sub_mesh(const Names& names) {
  TORCH_CHECK_VALUE(!names.empty(),
                    "meshtorch: a slice of a mesh needs at least one axis name\n  do: name the axes to keep");
  if (names == names_) return shared_from_this();
  MeshAxes axes;
  std::int64_t last = -1;
  bool is_ordered = true;
  for (const std::string& name : names) {
    const auto found = find_axis(name);
    const auto own = std::find(names_.begin(), names_.end(), name);
    axes.push_back(found ? *found : axes_[static_cast<std::size_t>(axis_named(name))]);
    if (own == names_.end()) continue;
    is_ordered &= own - names_.begin() > last;
    last = own - names_.begin();
  }
  TORCH_CHECK_VALUE(is_ordered && are_in_order(axes),
                    "meshtorch: the axes of a slice must keep the mesh's order\n  asked: ", join(names, ", "),
                    "\n  mesh: ", join(names_, ", "), "\n  do: name each axis once, in the mesh's order");
  return along(std::move(axes), names);
}

bool MeshImpl::has_slice(const MeshImpl& part) {
  auto from = names_.begin();
  for (const std::string& name : part.names_) {
    from = std::find(from, names_.end(), name);
    if (from == names_.end()) return false;
  }
  return !part.names_.empty() && sub_mesh(part.names_).get() == &part;
}

std::shared_ptr<MeshImpl> MeshImpl::joined_with(MeshImpl& other) {
  for (MeshImpl* top : {&root(), &other.root()}) {
    if (!top->has_slice(*this) || !top->has_slice(other)) continue;
    Names names;
    for (const std::string& name : top->names_) {
      const auto is_in = [&](const Names& some) { return std::ranges::find(some, name) != some.end(); };
      if (is_in(names_) || is_in(other.names_)) names.push_back(name);
    }
    return top->sub_mesh(names);
  }
  return nullptr;
}

std::shared_ptr<MeshImpl> MeshImpl::flatten(const std::string& name) {
  const std::string flat_name = !name.empty() ? name : names_.empty() ? "flat" : join(names_, "_");
  MeshImpl& top = root();
  const bool is_taken = std::find(top.names_.begin(), top.names_.end(), flat_name) != top.names_.end();
  TORCH_CHECK_VALUE(!is_taken || names_ == Names{flat_name}, "meshtorch: an axis ", flat_name,
                    " already exists for submesh of the DeviceMesh with axes ", join(top.names_, ", "),
                    "\n  do: choose another name for the flattened axis");
  if (names_ == Names{flat_name}) return shared_from_this();
  const MeshAxis axis = joined_axis(axes_);
  const MeshAxis known = [&] {
    const std::scoped_lock lock(top.mutex_);
    return top.flattened_.try_emplace(flat_name, axis).first->second;
  }();
  TORCH_CHECK_VALUE(known == axis, "meshtorch: Flatten mesh with mesh_dim_name ", flat_name,
                    " has been created before, with ranks ",
                    c10::IntArrayRef(along({known}, {flat_name})->ranks_), "\n  do: choose another name");
  return along({axis}, {flat_name});
}

std::shared_ptr<MeshImpl> MeshImpl::unflatten(std::int64_t axis, const Numbers& sizes, const Names& names) {
  const std::size_t a = axis_index(axis);
  const std::int64_t count =
      std::accumulate(sizes.begin(), sizes.end(), std::int64_t{1}, std::multiplies<>());
  TORCH_CHECK_VALUE(count == shape_[a] && std::ranges::all_of(sizes, [](std::int64_t s) { return s > 0; }),
                    "meshtorch: an axis of ", shape_[a], " ranks cannot become axes of ",
                    c10::IntArrayRef(sizes), " ranks\n  do: give sizes whose product is ", shape_[a]);
  TORCH_CHECK_VALUE(names.size() == (names_.empty() ? 0 : sizes.size()), "meshtorch: ", sizes.size(),
                    " axes in the place of one got ", names.size(),
                    " names\n  do: give one name for each, or none to a mesh without names");
  const auto replaced = [&](auto all, const auto& parts) {
    const auto at = all.erase(all.begin() + static_cast<std::ptrdiff_t>(a));
    all.insert(at, parts.begin(), parts.end());
    return all;
  };
  Names all_names = names_.empty() ? Names() : replaced(names_, names);
  const auto parts = split_axis(axes_[a], sizes);
  if (!parts) return get(device_type_, ranks_, replaced(shape_, sizes), std::move(all_names));
  return get(device_type_, ranks_, replaced(shape_, sizes), std::move(all_names), root().shared_from_this(),
             replaced(axes_, *parts));
}

std::shared_ptr<MeshImpl> MeshImpl::concatenate(const std::vector<std::shared_ptr<MeshImpl>>& meshes) {
  TORCH_CHECK_VALUE(!meshes.empty(), "meshtorch: no mesh to concatenate\n  do: give at least one");
  MeshAxes axes;
  Names names;
  const Numbers& ranks = meshes[0]->root().ranks_;
  for (const auto& mesh : meshes) {
    TORCH_CHECK_VALUE(mesh->root().ranks_ == ranks && mesh->device_type_ == meshes[0]->device_type_,
                      "meshtorch: meshes that were cut from different meshes cannot be concatenated\n  one: ",
                      meshes[0]->root().content_, "\n  other: ", mesh->root().content_,
                      "\n  do: slice them from one mesh");
    axes.insert(axes.end(), mesh->axes_.begin(), mesh->axes_.end());
    names.insert(names.end(), mesh->names_.begin(), mesh->names_.end());
  }
  const Numbers positions = positions_along(axes, 0);
  TORCH_CHECK_VALUE(std::set(positions.begin(), positions.end()).size() == positions.size(),
                    "meshtorch: meshes that overlap cannot be concatenated\n  axes: ", join(names, ", "),
                    "\n  do: name each axis once");
  return meshes[0]->along(std::move(axes), std::move(names));
}

}  // namespace meshtorch::internal
