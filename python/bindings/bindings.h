// What the files of the Python module share: one function for each file, and conversions between the two
// languages.
#pragma once

#include <torch/csrc/utils/pybind.h>

#include <optional>
#include <string>
#include <variant>

#include "meshtorch/device_mesh.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/group.h"
#include "meshtorch/placement.h"

namespace meshtorch::python {

// Each defines its part of the module.
void bind_placements(py::module_& m);
void bind_worlds(py::module_& m);
void bind_meshes(py::module_& m);
void bind_tensors(py::module_& m);
void bind_factories(py::module_& m);
void bind_collectives(py::module_& m);
void bind_debug(py::module_& m);
void bind_report(py::module_& m);
void bind_local_map(py::module_& m);
void bind_parallel(py::module_& m);
void bind_sequences(py::module_& m);
void bind_sharding(py::module_& m);
void bind_data_parallel(py::module_& m);

// Calls that may communicate run without the interpreter's lock.
using WithoutGil = py::call_guard<py::gil_scoped_release>;

// A placement as the class that Python knows it by: Shard, Replicate, Partial or _StridedShard.
py::object to_python(const Placement& placement);
py::tuple to_python(const Placements& placements);

// The group that torch.distributed knows, or meshtorch's own.
py::object to_python(const Group& group);
// From a ProcessGroup, its name, a mesh of one axis, (mesh, axis), ranks, or None for all ranks.
Group to_group(const py::handle& group);

// Joins the world of torch.distributed if there is one, else one that the environment describes, unless this
// rank is in it already.
void ensure_world();
// Whether this rank's groups are those of torch.distributed.
bool is_world_of_torch();

// An axis of a mesh, by number or name.
using Axis = std::variant<std::int64_t, std::string>;
std::int64_t axis_number(const DeviceMesh& mesh, const Axis& axis);

// The mesh, or the one of the innermost `with mesh:`.
DeviceMesh mesh_or_current(const std::optional<DeviceMesh>& mesh);
// The placements, or Replicate() for every axis.
Placements placements_or_replicated(const std::optional<Placements>& placements, const DeviceMesh& mesh);

}  // namespace meshtorch::python
