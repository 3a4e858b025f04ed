// The public face of a mesh.
#include "meshtorch/device_mesh.h"

#include <ATen/ATen.h>

#include <numeric>
#include <ostream>

#include "mesh/mesh_impl.h"
#include "mesh/slices.h"
#include "runtime/host_tensor.h"
#include "world/agree.h"

namespace meshtorch {
using namespace internal;
namespace {

std::vector<std::int64_t> to_vector(const at::Tensor& ranks) {
  TORCH_CHECK_VALUE(at::isIntegralType(ranks.scalar_type(), false),
                    "meshtorch: a mesh is a tensor of whole numbers, not of ",
                    c10::toString(ranks.scalar_type()), "\n  do: give an int64 tensor of ranks");
  const at::Tensor flat = ranks.to(at::kCPU, at::kLong).contiguous().view({-1});
  const auto* data = flat.const_data_ptr<std::int64_t>();
  return {data, data + flat.numel()};
}

void append_nested(std::string& text, const MeshImpl& mesh, std::size_t axis, std::size_t& next) {
  if (axis == mesh.shape().size()) {
    text += std::to_string(mesh.ranks()[next++]);
    return;
  }
  text += "[";
  for (std::int64_t i = 0; i < mesh.shape()[axis]; ++i) {
    if (i > 0) text += ", ";
    append_nested(text, mesh, axis + 1, next);
  }
  text += "]";
}

}  // namespace

DeviceMesh::DeviceMesh(c10::DeviceType device_type, const at::Tensor& ranks, const Names& names)
    : impl_(MeshImpl::get(device_type, to_vector(ranks),
                          ranks.dim() == 0 ? std::vector<std::int64_t>{1} : ranks.sizes().vec(), names)),
      root_(impl_) {}

DeviceMesh::DeviceMesh(c10::DeviceType device_type, const std::vector<std::int64_t>& ranks,
                       const Names& names)
    : impl_(MeshImpl::get(device_type, ranks, {static_cast<std::int64_t>(ranks.size())}, names)),
      root_(impl_) {}

DeviceMesh::DeviceMesh(std::shared_ptr<MeshImpl> impl) : impl_(std::move(impl)) {}

DeviceMesh::DeviceMesh(Submesh cut) : impl_(std::move(cut.mesh)), root_(std::move(cut.root)) {}

Submesh DeviceMesh::cut() const { return {impl_, root_ ? root_ : impl_->first_root()}; }

DeviceMesh DeviceMesh::from_group(const Group& group, c10::DeviceType device_type, const Names& names) {
  return MeshAccess::made_by_itself(MeshImpl::of_group(group, device_type, names));
}

c10::DeviceType DeviceMesh::device_type() const { return impl_->device_type(); }
std::int64_t DeviceMesh::ndim() const { return static_cast<std::int64_t>(impl_->shape().size()); }
const std::vector<std::int64_t>& DeviceMesh::shape() const { return impl_->shape(); }
std::int64_t DeviceMesh::size() const { return static_cast<std::int64_t>(impl_->ranks().size()); }
std::int64_t DeviceMesh::size(std::int64_t axis) const { return impl_->shape()[impl_->axis_index(axis)]; }
std::int64_t DeviceMesh::size(const std::string& axis) const { return size(impl_->axis_named(axis)); }
at::Tensor DeviceMesh::mesh() const {
  return at::tensor(impl_->ranks(), on_host(at::kLong)).view(impl_->shape());
}
const std::vector<std::int64_t>& DeviceMesh::ranks() const { return impl_->ranks(); }
const DeviceMesh::Names& DeviceMesh::names() const { return impl_->names(); }
std::int64_t DeviceMesh::axis(const std::string& name) const { return impl_->axis_named(name); }

std::int64_t DeviceMesh::get_rank() const { return impl_->world_rank(); }

std::int64_t DeviceMesh::get_local_rank(std::int64_t axis) const {
  const auto& coordinate = impl_->coordinate();
  TORCH_CHECK(coordinate, "meshtorch: rank ", impl_->world_rank(), " is not in ", to_string(),
              "\n  do: ask get_coordinate() first");
  return (*coordinate)[impl_->axis_index(axis)];
}

std::int64_t DeviceMesh::get_local_rank(const std::string& axis) const {
  return get_local_rank(impl_->axis_named(axis));
}

const std::optional<std::vector<std::int64_t>>& DeviceMesh::get_coordinate() const {
  return impl_->coordinate();
}

Group DeviceMesh::get_group() const {
  TORCH_CHECK(ndim() == 1, "meshtorch: a mesh of ", ndim(),
              " axes has a group for each\n  do: name one, as in get_group(",
              names().empty() ? "0" : '"' + names()[0] + '"', ")");
  return get_group(0);
}

Group DeviceMesh::get_group(std::int64_t axis) const {
  return impl_->group({static_cast<int>(impl_->axis_index(axis))});
}
Group DeviceMesh::get_group(const std::string& axis) const { return get_group(impl_->axis_named(axis)); }

std::vector<Group> DeviceMesh::get_all_groups() const {
  std::vector<Group> groups;
  for (std::int64_t axis = 0; axis < ndim(); ++axis) groups.push_back(get_group(axis));
  return groups;
}

DeviceMesh DeviceMesh::operator[](const std::string& name) const { return (*this)[Names{name}]; }
DeviceMesh DeviceMesh::operator[](const Names& names) const { return DeviceMesh(slice_along(cut(), names)); }
DeviceMesh DeviceMesh::operator[](std::initializer_list<const char*> names) const {
  return (*this)[Names(names.begin(), names.end())];
}
DeviceMesh DeviceMesh::flatten(const std::string& name) const { return DeviceMesh(flattened(cut(), name)); }
DeviceMesh DeviceMesh::unflatten(std::int64_t axis, const std::vector<std::int64_t>& sizes,
                                 const Names& names) const {
  return DeviceMesh(unflattened(cut(), axis, sizes, names));
}
DeviceMesh DeviceMesh::unflatten(const std::string& axis, const std::vector<std::int64_t>& sizes,
                                 const Names& names) const {
  return unflatten(impl_->axis_named(axis), sizes, names);
}
DeviceMesh DeviceMesh::concatenate(const std::vector<DeviceMesh>& meshes) {
  std::vector<Submesh> parts;
  for (const DeviceMesh& mesh : meshes) parts.push_back(mesh.cut());
  return DeviceMesh(concatenated(parts));
}
DeviceMesh DeviceMesh::root() const { return MeshAccess::made_by_itself(cut().root); }

std::string DeviceMesh::to_string() const {
  std::string text = "DeviceMesh((";
  for (std::size_t axis = 0; axis < shape().size(); ++axis) {
    if (axis > 0) text += ", ";
    if (!names().empty()) text += names()[axis] + "=";
    text += std::to_string(shape()[axis]);
  }
  text += "), ";
  std::size_t next = 0;
  append_nested(text, *impl_, 0, next);
  text += ", " + c10::DeviceTypeName(device_type(), true);
  if (impl_->is_left()) return text + ", of a world that was destroyed)";
  if (impl_->is_of_another_rank()) return text + ", of rank " + std::to_string(impl_->world_rank()) + ")";
  return text + ")";
}

bool operator==(const DeviceMesh& a, const DeviceMesh& b) {
  if (a.impl_ == b.impl_) return true;
  return a.impl_->content() == b.impl_->content() && a.impl_->is_left() == b.impl_->is_left();
}

std::size_t DeviceMesh::hash() const { return std::hash<std::string>()(impl_->content()); }

DeviceMesh init_device_mesh(c10::DeviceType device_type, const std::vector<std::int64_t>& shape,
                            const DeviceMesh::Names& names) {
  const int world_size = current_rank()->world().size;
  const std::int64_t count = count_of_ranks(shape);
  TORCH_CHECK_VALUE(
      count == world_size, "meshtorch: a mesh of shape ", c10::IntArrayRef(shape), " has ", count,
      " ranks, but the world has ", world_size,
      "\n  do: make their product the world size, or list the ranks with DeviceMesh(device, ranks)");
  std::vector<std::int64_t> ranks(static_cast<std::size_t>(count));
  std::iota(ranks.begin(), ranks.end(), 0);
  const DeviceMesh mesh =
      MeshAccess::made_by_itself(MeshImpl::get(device_type, std::move(ranks), shape, names));
  agree_on(Group(), UncommunicatedCall(c10::str("init_device_mesh(", mesh.to_string(), ")")));
  return mesh;
}

std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh) { return out << mesh.to_string(); }

}  // namespace meshtorch
