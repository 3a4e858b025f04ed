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

std::string content_of(c10::DeviceType device_type, const Numbers& ranks, const Numbers& shape,
                       const Names& names) {
  return c10::str(c10::DeviceTypeName(device_type, true), "|", c10::IntArrayRef(shape), "|",
                  c10::IntArrayRef(ranks), "|", joined_names(names, ","));
}

void check_names(const Names& names, const Numbers& shape) {
  TORCH_CHECK_VALUE(names.empty() || names.size() == shape.size(), "meshtorch: a mesh of ", shape.size(),
                    " axes has ", names.size(), " names (", joined_names(names, ", "),
                    ")\n  do: give one name for each axis, or none");
  std::set<std::string> seen;
  for (const std::string& name : names) {
    TORCH_CHECK_VALUE(!name.empty(), "meshtorch: an axis name of a mesh is empty (",
                      joined_names(names, ", "), ")\n  do: name every axis, or none");
    TORCH_CHECK_VALUE(seen.insert(name).second, "meshtorch: the axis name \"", name,
                      "\" is used twice in one mesh (", joined_names(names, ", "),
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

std::int64_t count_of_ranks(const Numbers& shape) {
  std::int64_t count = 1;
  for (const std::int64_t extent : shape) {
    TORCH_CHECK_VALUE(extent >= 1, "meshtorch: an axis of a mesh has at least 1 rank, not ", extent,
                      ", in shape ", c10::IntArrayRef(shape), "\n  do: give positive sizes");
    count *= extent;
  }
  return count;
}

std::string joined_names(const Names& names, const char* separator) {
  std::string text;
  for (const std::string& name : names) text.append(text.empty() ? "" : separator).append(name);
  return text;
}

std::shared_ptr<MeshImpl> MeshImpl::get(c10::DeviceType device_type, Numbers ranks, Numbers shape,
                                        Names names, const ParentLink& from) {
  const auto context = current_rank();
  check_names(names, shape);
  check_ranks(ranks, shape, context->world().size);
  const std::string content = content_of(device_type, ranks, shape, names);
  auto interned = context->intern(content, [&] {
    std::shared_ptr<MeshImpl> mesh(new MeshImpl());
    mesh->device_type_ = device_type;
    mesh->ranks_ = std::move(ranks);
    mesh->shape_ = std::move(shape);
    mesh->names_ = std::move(names);
    mesh->content_ = content;
    mesh->backend_ = &traits_of(context->world().backend);
    mesh->world_rank_ = context->world().rank;
    mesh->made_from_ = from;
    mesh->context_ = context;
    const auto self = std::find(mesh->ranks_.begin(), mesh->ranks_.end(), mesh->world_rank_);
    if (self != mesh->ranks_.end()) mesh->coordinate_ = unravel(self - mesh->ranks_.begin(), mesh->shape_);
    return mesh;
  });
  interned->note_cut(from);
  return interned;
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
                        : "its axes are " + joined_names(names_, ", ") + "\n  do: use one of these names");
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
  {
    const std::scoped_lock lock(mutex_);
    if (const auto found = groups_.find(axes); found != groups_.end()) return found->second;
  }
  const auto context = context_.lock();
  TORCH_CHECK(context && !context->is_left(),
              "meshtorch: this mesh belongs to a world that was destroyed\n  do: make it again after "
              "init_process_group()");
  const Numbers ranks = ranks_along(axes);
  std::shared_ptr<const GroupImpl> found;
  if (axes.size() == 1) {
    const auto axis = static_cast<std::size_t>(axes[0]);
    found = context->group_of_axis(names_.empty() ? c10::str("dim_", axis) : names_[axis], ranks);
  }
  Group made(found ? found : context->group(ranks));  // may wait for other ranks
  const std::scoped_lock lock(mutex_);
  return groups_.emplace(axes, std::move(made)).first->second;
}

void MeshImpl::note_cut(const ParentLink& from) {
  if (!from.root || from.root.get() == this || from.root == made_from_.root) return;
  const std::scoped_lock lock(mutex_);
  const auto is_root = [&](const auto& cut) { return cut.first.lock() == from.root; };
  if (std::ranges::none_of(cut_later_, is_root)) cut_later_.emplace_back(from.root, from.axes);
}

std::vector<ParentLink> MeshImpl::cuts() {
  std::vector<ParentLink> all{made_from_.root ? made_from_
                                              : ParentLink{shared_from_this(), root_axes(shape_)}};
  const std::scoped_lock lock(mutex_);
  for (const auto& [root, axes] : cut_later_) {
    if (auto alive = root.lock()) all.push_back({std::move(alive), axes});
  }
  return all;
}

ParentLink MeshImpl::cut_in(const std::shared_ptr<MeshImpl>& root) {
  if (root.get() == this) return {root, root_axes(shape_)};
  for (ParentLink& cut : cuts()) {
    if (cut.root == root) return std::move(cut);
  }
  TORCH_INTERNAL_ASSERT(false, "a mesh was not cut from this one");
}

std::shared_ptr<MeshImpl> MeshImpl::first_root() {
  const std::vector<ParentLink> all = cuts();
  return all[made_from_.root || all.size() == 1 ? 0 : 1].root;
}

std::optional<MeshAxis> MeshImpl::flattened_axis(const std::string& name) const {
  const std::scoped_lock lock(mutex_);
  const auto found = flattened_.find(name);
  return found == flattened_.end() ? std::nullopt : std::optional(found->second);
}

MeshAxis MeshImpl::name_axis(const std::string& name, const MeshAxis& axis) {
  const std::scoped_lock lock(mutex_);
  return flattened_.try_emplace(name, axis).first->second;
}

}  // namespace meshtorch::internal
