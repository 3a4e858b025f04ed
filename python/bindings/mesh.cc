// DeviceMesh from Python.
#include "meshtorch/device_mesh.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/python_variable.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "bindings/bindings.h"
#include "mesh/mesh_impl.h"

namespace meshtorch::python {
namespace {

// The meshes of the `with mesh:` that are open on this thread.
std::vector<DeviceMesh>& open_meshes() {
  static thread_local std::vector<DeviceMesh> meshes;
  return meshes;
}

c10::DeviceType parse_device(const std::string& device_type) {
  TORCH_CHECK(
      std::all_of(device_type.begin(), device_type.end(), [](char c) { return std::isalpha(c) != 0; }),
      "meshtorch: Device type with index is not supported but got ", device_type,
      "\n  do: give the type alone, as device.type");
  return c10::Device(device_type).type();
}

// torch.distributed makes a group together or not at all: they are made here, where all ranks are, and not at
// first use, where one may be alone.
DeviceMesh with_groups(DeviceMesh mesh) {
  if (!is_world_of_torch() || !mesh.get_coordinate()) return mesh;
  const py::gil_scoped_release no_lock;
  mesh.get_all_groups();
  return mesh;
}

DeviceMesh make_mesh(const std::string& device_type, const at::Tensor& ranks,
                     const std::optional<DeviceMesh::Names>& names) {
  const c10::DeviceType device = parse_device(device_type);
  ensure_world();
  return with_groups(DeviceMesh(device, ranks, names.value_or(DeviceMesh::Names())));
}

at::Tensor to_ranks(const py::object& mesh) {
  if (THPVariable_Check(mesh.ptr())) return mesh.cast<at::Tensor>();
  return py::module_::import("torch").attr("tensor")(mesh, py::arg("dtype") = at::kLong).cast<at::Tensor>();
}

DeviceMesh make_whole_mesh(const std::string& device_type, const std::vector<std::int64_t>& shape,
                           const std::optional<DeviceMesh::Names>& names) {
  if (names) {
    TORCH_CHECK(names->size() == shape.size(),
                "meshtorch: mesh_shape and mesh_dim_names should have same length!\n  mesh_shape: ",
                c10::IntArrayRef(shape), "\n  mesh_dim_names: ", c10::ArrayRef<std::string>(*names));
    const std::set<std::string> different(names->begin(), names->end());
    TORCH_CHECK(different.size() == names->size(), "meshtorch: Each mesh_dim_name must be unique, got ",
                c10::ArrayRef<std::string>(*names));
  }
  const std::int64_t count = internal::count_of_ranks(shape);
  return make_mesh(device_type, at::arange(count, at::kLong).view(shape), names);
}

DeviceMesh slice(const DeviceMesh& mesh, const std::variant<std::string, DeviceMesh::Names>& names) {
  TORCH_CHECK(!mesh.names().empty(),
              "meshtorch: Cannot slice a DeviceMesh without mesh_dim_names!\n  mesh: ", mesh.to_string(),
              "\n  do: name the axes when the mesh is made");
  try {
    if (const auto* name = std::get_if<std::string>(&names)) return with_groups(mesh[*name]);
    return with_groups(mesh[std::get<DeviceMesh::Names>(names)]);
  } catch (const c10::ValueError& error) {
    throw py::key_error(
        c10::str("Invalid mesh_dim_names (Mesh dim indices should be in ascending order, and the names those "
                 "of axes): ",
                 error.what_without_backtrace()));
  }
}

DeviceMesh flatten(const DeviceMesh& mesh, const std::optional<std::string>& name) {
  TORCH_CHECK(!mesh.names().empty(),
              "meshtorch: Cannot flatten a DeviceMesh without mesh_dim_names!\n  mesh: ", mesh.to_string(),
              "\n  do: name the axes when the mesh is made");
  return with_groups(mesh.flatten(name.value_or(std::string())));
}

DeviceMesh unflatten(const DeviceMesh& mesh, const Axis& axis, const std::vector<std::int64_t>& sizes,
                     const DeviceMesh::Names& names) {
  TORCH_CHECK(sizes.size() == names.size(),
              "meshtorch: mesh_dim_names must have same length as mesh_sizes in _unflatten!\n  mesh_sizes: ",
              c10::IntArrayRef(sizes), "\n  mesh_dim_names: ", c10::ArrayRef<std::string>(names));
  if (const auto* number = std::get_if<std::int64_t>(&axis)) {
    return with_groups(mesh.unflatten(*number, sizes, names));
  }
  return with_groups(mesh.unflatten(std::get<std::string>(axis), sizes, names));
}

std::int64_t only_axis(const DeviceMesh& mesh, const std::optional<Axis>& axis) {
  TORCH_CHECK(axis || mesh.ndim() == 1,
              "meshtorch: Optional kwarg `mesh_dim` needs to be specified when "
              "device_mesh.ndim > 1.\n  mesh: ",
              mesh.to_string());
  return axis ? axis_number(mesh, *axis) : 0;
}

// The group along an axis, or along one that was flattened.
Group group_along(const DeviceMesh& mesh, const std::optional<Axis>& axis) {
  const auto* name = axis ? std::get_if<std::string>(&*axis) : nullptr;
  const bool is_flattened = name != nullptr && std::ranges::find(mesh.names(), *name) == mesh.names().end();
  const DeviceMesh part = is_flattened ? slice(mesh, *name) : mesh;
  const std::int64_t number = is_flattened ? 0 : only_axis(mesh, axis);
  const py::gil_scoped_release no_lock;
  return part.get_group(number);
}

py::object names_or_none(const DeviceMesh& mesh) {
  if (mesh.names().empty()) return py::none();
  return py::tuple(py::cast(mesh.names()));
}

// Tried where a mesh is asked for and something else given: a mesh of torch is named, and how to get one of
// meshtorch. All else is what pybind says of it.
PyObject* refuse_mesh_of_torch(PyObject* object, PyTypeObject*) {
  const auto type = py::type::of(py::handle(object));
  const std::string name = py::str(type.attr("__module__")).cast<std::string>() + "." +
                           py::str(type.attr("__qualname__")).cast<std::string>();
  if (name != "torch.distributed.device_mesh.DeviceMesh") return nullptr;
  throw py::type_error(
      "meshtorch: a mesh of PyTorch was given where one of meshtorch is needed\n  it is: " +
      py::repr(py::handle(object)).cast<std::string>() +
      "\n  do: make it with meshtorch.init_device_mesh or meshtorch.DeviceMesh, which take the same "
      "arguments, or import meshtorch.drop_in before the program makes meshes");
}

py::tuple mesh_rebuilt_by(const py::object& self) {
  const auto& mesh = self.cast<const DeviceMesh&>();
  return py::make_tuple(py::module_::import("meshtorch.device_mesh").attr("_rebuild"),
                        py::make_tuple(std::string(c10::DeviceTypeName(mesh.device_type(), true)),
                                       mesh.mesh(), names_or_none(mesh)));
}

}  // namespace

std::int64_t axis_number(const DeviceMesh& mesh, const Axis& axis) {
  const auto* number = std::get_if<std::int64_t>(&axis);
  if (number != nullptr) return *number;
  try {
    return mesh.axis(std::get<std::string>(axis));
  } catch (const c10::ValueError& error) {
    throw py::key_error(error.what_without_backtrace());
  }
}

DeviceMesh mesh_or_current(const std::optional<DeviceMesh>& mesh) {
  if (mesh) return *mesh;
  TORCH_CHECK(!open_meshes().empty(),
              "meshtorch: No device mesh is currently active!\n  do: give device_mesh, or "
              "call this inside `with mesh:`");
  return open_meshes().back();
}

Placements placements_or_replicated(const std::optional<Placements>& placements, const DeviceMesh& mesh) {
  return placements ? *placements : Placements(static_cast<std::size_t>(mesh.ndim()));
}

void bind_meshes(py::module_& m) {
  const auto no_axis = py::arg("mesh_dim") = py::none();
  py::class_<DeviceMesh>(m, "DeviceMesh", R"(An n-dimensional arrangement of ranks with named axes.

>>> mesh = meshtorch.DeviceMesh("cpu", [[0, 1]], mesh_dim_names=("dp", "tp"))
>>> mesh.shape, mesh["tp"].get_local_rank() in (0, 1)
((1, 2), True)
)")
      .def(py::init([](const std::string& device_type, const py::object& mesh,
                       const std::optional<DeviceMesh::Names>& names, bool /*preserve_rank_order*/) {
             return make_mesh(device_type, to_ranks(mesh), names);
           }),
           "Groups have the ranks in the order of the mesh, with and without preserve_rank_order.",
           py::arg("device_type"), py::arg("mesh"), py::kw_only(), py::arg("mesh_dim_names") = py::none(),
           py::arg("preserve_rank_order") = false)
      .def_property_readonly(
          "device_type", [](const DeviceMesh& mesh) { return c10::DeviceTypeName(mesh.device_type(), true); })
      .def_property_readonly("ndim", &DeviceMesh::ndim)
      .def_property_readonly("shape",
                             [](const DeviceMesh& mesh) { return py::tuple(py::cast(mesh.shape())); })
      .def_property_readonly("mesh", [](const DeviceMesh& mesh) { return mesh.mesh().to(at::kInt); })
      .def_property_readonly("mesh_dim_names", &names_or_none)
      .def(
          "size",
          [](const DeviceMesh& mesh, const std::optional<Axis>& axis) {
            return axis ? mesh.size(axis_number(mesh, *axis)) : mesh.size();
          },
          no_axis)
      .def("get_rank", &DeviceMesh::get_rank, "Returns the number of this rank in its world.")
      .def(
          "get_local_rank",
          [](const DeviceMesh& mesh, const std::optional<Axis>& axis) {
            return mesh.get_local_rank(only_axis(mesh, axis));
          },
          no_axis)
      .def("get_coordinate",
           [](const DeviceMesh& mesh) -> py::object {
             if (!mesh.get_coordinate()) return py::none();
             return py::tuple(py::cast(*mesh.get_coordinate()));
           })
      .def(
          "get_group",
          [](const DeviceMesh& mesh, const std::optional<Axis>& axis) {
            return to_python(group_along(mesh, axis));
          },
          no_axis)
      .def("get_all_groups",
           [](const DeviceMesh& mesh) {
             const auto made = [&] {
               const py::gil_scoped_release no_lock;
               return mesh.get_all_groups();
             };
             py::list groups;
             for (const Group& group : made()) groups.append(to_python(group));
             return groups;
           })
      .def(
          "axis_cost",
          [](const DeviceMesh& mesh, const std::optional<Axis>& axis) {
            const AxisCost cost = mesh.axis_cost(only_axis(mesh, axis));
            return py::dict(py::arg("latency") = cost.latency_s,
                            py::arg("bandwidth") = 1 / cost.seconds_per_byte);
          },
          no_axis, "Seconds to start a collective along the axis, and bytes a second.")
      .def(
          "set_axis_cost",
          [](const DeviceMesh& mesh, const Axis& axis, double latency, double bandwidth) {
            mesh.set_axis_cost(axis_number(mesh, axis), {latency, 1 / bandwidth});
          },
          py::arg("mesh_dim"), py::kw_only(), py::arg("latency"), py::arg("bandwidth"),
          "Says what communication along the axis costs; layouts and collectives are chosen by it. Every "
          "rank says the same.")
      .def("measure", &DeviceMesh::measure, WithoutGil(),
           "Times collectives along each axis and sets what they cost, on every rank the same. Every rank of "
           "the world calls it.")
      .def("__getitem__", &slice)
      .def("_flatten", &flatten, py::arg("mesh_dim_name") = py::none())
      .def("_unflatten", &unflatten, py::arg("dim"), py::arg("mesh_sizes"), py::arg("mesh_dim_names"))
      .def_static(
          "_concatenate",
          [](const std::vector<DeviceMesh>& meshes) { return with_groups(DeviceMesh::concatenate(meshes)); },
          py::arg("device_mesh_list"))
      .def("_get_root_mesh", &DeviceMesh::root)
      .def("__enter__",
           [](const DeviceMesh& mesh) {
             open_meshes().push_back(mesh);
             return mesh;
           })
      .def("__exit__",
           [](const DeviceMesh& mesh, const py::args&) {
             TORCH_CHECK(
                 !open_meshes().empty() && open_meshes().back() == mesh,
                 "meshtorch: a mesh is left that is not the one entered last\n  left: ", mesh.to_string(),
                 "\n  entered last: ", open_meshes().empty() ? "none" : open_meshes().back().to_string(),
                 "\n  do: open it by `with`");
             open_meshes().pop_back();
           })
      .def(
          "__eq__", [](const DeviceMesh& a, const DeviceMesh& b) { return a == b; }, py::is_operator())
      .def("__hash__", &DeviceMesh::hash)
      .def("__repr__", &DeviceMesh::to_string)
      .def("__reduce__", &mesh_rebuilt_by)
      .def("__deepcopy__", [](const DeviceMesh& mesh, const py::object&) { return mesh; })
      .def("__copy__", [](const DeviceMesh& mesh) { return mesh; });
  py::detail::get_type_info(typeid(DeviceMesh), /*throw_if_missing=*/true)
      ->implicit_conversions.push_back(&refuse_mesh_of_torch);
  m.def("mesh_or_current", &mesh_or_current, py::arg("device_mesh") = py::none());
  m.def("init_device_mesh", &make_whole_mesh, py::arg("device_type"), py::arg("mesh_shape"), py::kw_only(),
        py::arg("mesh_dim_names") = py::none());
}

}  // namespace meshtorch::python
