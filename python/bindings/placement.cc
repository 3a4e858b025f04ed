// Placements as Python classes: one C++ type, of which Python sees Shard, Replicate, Partial, _StridedShard.
#include "meshtorch/placement.h"

#include "bindings/bindings.h"

namespace meshtorch::python {
namespace {

// Python tells the kinds apart by class.
struct ShardClass : Placement {};
struct StridedShardClass : Placement {};
struct ReplicateClass : Placement {};
struct PartialClass : Placement {};

std::string describe_placement(const Placement& p) {
  switch (p.kind()) {
    case Placement::Kind::shard:
      return "Shard(dim=" + std::to_string(p.dim()) + ")";
    case Placement::Kind::strided_shard:
      return "_StridedShard(dim=" + std::to_string(p.dim()) + ", sf=" + std::to_string(p.split_factor()) +
             ")";
    case Placement::Kind::partial:
      return "Partial(" + std::string(to_string(p.reduce_op())) + ")";
    default:
      return "Replicate()";
  }
}

// How to make an equal one: what pickle stores.
py::tuple placement_rebuilt_by(const py::object& self) {
  const auto& p = self.cast<const Placement&>();
  py::tuple arguments;
  if (p.kind() == Placement::Kind::shard) arguments = py::make_tuple(p.dim());
  if (p.kind() == Placement::Kind::strided_shard) arguments = py::make_tuple(p.dim(), p.split_factor());
  if (p.is_partial()) arguments = py::make_tuple(std::string(to_string(p.reduce_op())));
  return py::make_tuple(py::type::of(self), arguments);
}

}  // namespace

py::object to_python(const Placement& placement) {
  switch (placement.kind()) {
    case Placement::Kind::shard:
      return py::cast(ShardClass{placement});
    case Placement::Kind::strided_shard:
      return py::cast(StridedShardClass{placement});
    case Placement::Kind::partial:
      return py::cast(PartialClass{placement});
    default:
      return py::cast(ReplicateClass{placement});
  }
}

py::tuple to_python(const Placements& placements) {
  py::tuple result(placements.size());
  for (std::size_t axis = 0; axis < placements.size(); ++axis) result[axis] = to_python(placements[axis]);
  return result;
}

void bind_placements(py::module_& m) {
  py::class_<Placement>(m, "Placement",
                        R"(How a tensor lies on one axis of a mesh: Shard, Replicate or Partial.

>>> meshtorch.Shard(0).is_shard(), meshtorch.Shard(0) == meshtorch.Replicate()
(True, False)
)")
      .def(
          "is_shard",
          [](const Placement& p, const std::optional<std::int64_t>& dim) {
            return p.kind() == Placement::Kind::shard && (!dim || p.is_shard(*dim));
          },
          py::arg("dim") = py::none())
      .def("is_replicate", &Placement::is_replicate)
      .def(
          "is_partial",
          [](const Placement& p, const std::optional<std::string>& op) {
            return p.is_partial() && (!op || p.is_partial(parse_reduce_op(*op)));
          },
          py::arg("reduce_op") = py::none())
      .def(
          "__eq__", [](const Placement& a, const Placement& b) { return a == b; }, py::is_operator())
      .def("__hash__", [](const Placement& p) { return hash_value(p); })
      .def("__repr__", &describe_placement)
      .def("__str__", &Placement::to_string)
      .def("__reduce__", &placement_rebuilt_by);
  py::class_<ShardClass, Placement>(
      m, "Shard", R"(The tensor is split along a dim as torch.chunk splits; uneven and empty parts are normal.

>>> meshtorch.Shard(-1)
Shard(dim=-1)
)")
      .def(py::init([](std::int64_t dim) { return ShardClass{Shard(dim)}; }), py::arg("dim"))
      .def_property_readonly("dim", &Placement::dim);
  py::class_<StridedShardClass, Placement>(m, "_StridedShard",
                                           "Split along a dim that is cut into pieces first.")
      .def(py::init([](std::int64_t dim, std::int64_t split_factor) {
             return StridedShardClass{StridedShard(dim, split_factor)};
           }),
           py::arg("dim"), py::arg("split_factor"))
      .def_property_readonly("dim", &Placement::dim)
      .def_property_readonly("split_factor", &Placement::split_factor);
  py::class_<ReplicateClass, Placement>(m, "Replicate", R"(Every rank of the axis has the whole tensor.

>>> meshtorch.Replicate().is_replicate()
True
)")
      .def(py::init([] { return ReplicateClass{Replicate()}; }));
  py::class_<PartialClass, Placement>(
      m, "Partial",
      R"(Every rank has a term; the tensor is their reduction: sum, avg, product, min, max, band, bor or bxor.

>>> meshtorch.Partial("max").reduce_op
'max'
)")
      .def(py::init([](const std::string& op) { return PartialClass{Partial(op)}; }),
           py::arg("reduce_op") = "sum")
      .def_property_readonly("reduce_op",
                             [](const Placement& p) { return std::string(to_string(p.reduce_op())); });
}

}  // namespace meshtorch::python
