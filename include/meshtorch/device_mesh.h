// An n-dimensional arrangement of ranks with named axes.
#pragma once

#include <c10/core/DeviceType.h>

#include <cstdint>
#include <functional>
#include <initializer_list>
#include <iosfwd>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/axis_cost.h"
#include "meshtorch/group.h"

namespace at {
class Tensor;
}

namespace meshtorch {

namespace internal {
class MeshImpl;
struct Submesh;
struct MeshAccess;
}  // namespace internal

// A handle to an immutable mesh; copies are cheap. Every rank of the world may hold a mesh; only its members
// take part in what happens on it.
class MESHTORCH_API DeviceMesh {
 public:
  using Names = std::vector<std::string>;

  // The mesh of an integer tensor of ranks, or of a list of them (one axis).
  DeviceMesh(c10::DeviceType device_type, const at::Tensor& ranks, const Names& names = {});
  DeviceMesh(c10::DeviceType device_type, const std::vector<std::int64_t>& ranks, const Names& names = {});
  // The mesh of one axis that a group spans. It uses that group; of a process group made elsewhere the ranks
  // count from 0.
  static DeviceMesh from_group(const Group& group, c10::DeviceType device_type, const Names& names = {});
  // Of meshtorch's own making.
  explicit DeviceMesh(std::shared_ptr<internal::MeshImpl> impl);
  // Moves are copies; a DeviceMesh is never empty.
  DeviceMesh(const DeviceMesh&) = default;
  DeviceMesh& operator=(const DeviceMesh&) = default;
  ~DeviceMesh() = default;

  c10::DeviceType device_type() const;
  std::int64_t ndim() const;
  const std::vector<std::int64_t>& shape() const;
  // The number of ranks, in all or along one axis.
  std::int64_t size() const;
  std::int64_t size(std::int64_t axis) const;
  std::int64_t size(const std::string& axis) const;
  // The ranks, as an int64 tensor or in row-major order.
  at::Tensor mesh() const;
  const std::vector<std::int64_t>& ranks() const;
  // One name an axis, or none at all.
  const Names& names() const;
  // The number of the axis with this name; throws an error that lists the names.
  std::int64_t axis(const std::string& name) const;

  // This rank in the world, on one axis, and on all of them (nothing if it is not in the mesh).
  std::int64_t get_rank() const;
  std::int64_t get_local_rank(std::int64_t axis = 0) const;
  std::int64_t get_local_rank(const std::string& axis) const;
  const std::optional<std::vector<std::int64_t>>& get_coordinate() const;

  // The group of this rank along one axis; a mesh of one axis needs no argument. Made once.
  Group get_group() const;
  Group get_group(std::int64_t axis) const;
  Group get_group(const std::string& axis) const;
  std::vector<Group> get_all_groups() const;

  // The part of the mesh that runs along the named axes and holds this rank. Names made by flatten() work
  // too, also beside others: mesh[{"dp_cp", "tp"}].
  DeviceMesh operator[](const std::string& name) const;
  DeviceMesh operator[](const Names& names) const;
  // mesh[{"dp", "tp"}]: without it, two literals could also mean the two ends of one std::string.
  DeviceMesh operator[](std::initializer_list<const char*> names) const;
  // The axes of this mesh as one axis of the given name (default: the names joined by "_"). The name can be
  // used for slicing the mesh that this one was cut from.
  DeviceMesh flatten(const std::string& name = {}) const;
  // The mesh with several axes in the place of one, whose size is the product of theirs.
  DeviceMesh unflatten(std::int64_t axis, const std::vector<std::int64_t>& sizes, const Names& names) const;
  DeviceMesh unflatten(const std::string& axis, const std::vector<std::int64_t>& sizes,
                       const Names& names) const;
  // The mesh along the axes of all of these, which were cut from one mesh.
  static DeviceMesh concatenate(const std::vector<DeviceMesh>& meshes);
  // The mesh that this one was cut from; itself if it was made of ranks. The mesh of a tensor does not say
  // from which, if equal ones were cut from several: from the first.
  DeviceMesh root() const;

  // What communication along an axis costs: the choice of layouts and of collectives goes by it. Every rank
  // sets the same. It holds for all meshes that were cut from the same one as this; an axis of several pays
  // the worst of theirs.
  AxisCost axis_cost(std::int64_t axis = 0) const;
  AxisCost axis_cost(const std::string& axis) const;
  void set_axis_cost(std::int64_t axis, const AxisCost& cost) const;
  void set_axis_cost(const std::string& axis, const AxisCost& cost) const;
  // Times small and large collectives along each axis and sets what they cost, on every rank the same: the
  // worst of all. Every rank of the world calls it. Where there are no other ranks, on the backend "fake" and
  // along axes of one rank, costs stay as they are.
  void measure() const;

  // "DeviceMesh((dp=2, tp=2), [[0, 1], [2, 3]], cpu)"
  std::string to_string() const;

  // By content: device type, ranks, shape and names.
  friend MESHTORCH_API bool operator==(const DeviceMesh& a, const DeviceMesh& b);
  std::size_t hash() const;

 private:
  friend struct internal::MeshAccess;
  explicit DeviceMesh(internal::Submesh cut);
  internal::Submesh cut() const;

  std::shared_ptr<internal::MeshImpl> impl_;
  std::shared_ptr<internal::MeshImpl> root_;  // null: the first that it was cut from
};

// The mesh of all ranks of the world in this shape. The product of the shape must be the world size.
MESHTORCH_API DeviceMesh init_device_mesh(c10::DeviceType device_type, const std::vector<std::int64_t>& shape,
                                          const DeviceMesh::Names& names = {});

// Prints what to_string() returns.
MESHTORCH_API std::ostream& operator<<(std::ostream& out, const DeviceMesh& mesh);

}  // namespace meshtorch

template <>
struct std::hash<meshtorch::DeviceMesh> {
  std::size_t operator()(const meshtorch::DeviceMesh& mesh) const { return mesh.hash(); }
};
