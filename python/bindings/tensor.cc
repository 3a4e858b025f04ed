// Distributed tensors from Python: torch.Tensor objects that the library knows.
#include <ATen/ATen.h>

#include "bindings/bindings.h"
#include "mesh/mesh_impl.h"
#include "meshtorch/distribute_module.h"
#include "meshtorch/implicit_replication.h"
#include "meshtorch/keep_layout.h"
#include "meshtorch/loss_parallel.h"
#include "meshtorch/rule.h"
#include "nn/replicate_over.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::python {
using namespace internal;
namespace {

using Numbers = std::vector<std::int64_t>;
using OptionalMesh = std::optional<DeviceMesh>;
using OptionalPlacements = std::optional<Placements>;

at::Tensor from_local(at::Tensor local, const OptionalMesh& given, const OptionalPlacements& placements,
                      bool run_check, const std::optional<Numbers>& shape,
                      const std::optional<Numbers>& stride, const OptionalPlacements& grad_placements) {
  TORCH_CHECK(!is_dtensor(local),
              "meshtorch: the local_tensor argument only accepts torch.Tensor, but this "
              "one is distributed\n  do: use redistribute");
  TORCH_CHECK(shape.has_value() == stride.has_value(), "meshtorch: from_local got a ",
              shape ? "shape without a stride" : "stride without a shape",
              "\n  do: Please pass both shape and stride at the same time.");
  const DeviceMesh mesh = mesh_or_current(given);
  if (local.device().type() != mesh.device_type() && !local.is_meta()) local = local.to(mesh.device_type());
  return DTensor::from_local(local, mesh, placements_or_replicated(placements, mesh),
                             {run_check, shape, stride, grad_placements});
}

at::Tensor redistribute(const at::Tensor& tensor, const OptionalMesh& mesh,
                        const OptionalPlacements& placements, bool async_op,
                        const std::optional<at::ScalarType>& forward_dtype,
                        const std::optional<at::ScalarType>& backward_dtype) {
  TORCH_CHECK(placements, "meshtorch: placements is needed for redistribute!");
  const DTensor source = tensor;
  const RedistributeOptions options{async_op, forward_dtype, backward_dtype};
  if (mesh) return source.redistribute(*mesh, *placements, options);
  return source.redistribute(*placements, options);
}

at::Tensor distribute_plain_or_same(const at::Tensor& tensor, const OptionalMesh& given,
                                    const OptionalPlacements& placements,
                                    const std::optional<int>& src_data_rank) {
  const DeviceMesh mesh = mesh_or_current(given);
  return distribute_tensor(tensor, mesh, placements_or_replicated(placements, mesh), {src_data_rank});
}

// The object that callers hold of a shard, remembered by the shard for as long as they do.
struct ShownShard final : c10::BackendMeta {
  explicit ShownShard(const at::Tensor& shard) : object(shard.getIntrusivePtr()) {}
  c10::weak_intrusive_ptr<c10::TensorImpl> object;
};

bool is_as_given(const at::Tensor& held, const at::Tensor& shard) {
  return !held.requires_grad() && held.is_alias_of(shard) && held.scalar_type() == shard.scalar_type() &&
         held.storage_offset() == shard.storage_offset() && held.sizes() == shard.sizes() &&
         held.strides() == shard.strides();
}

// One Python object for all who ask for a shard without gradients, unless one of them changed its shape or
// lets it require gradients: that reaches neither the distributed tensor nor who asks later. Python's lock is
// held.
at::Tensor one_object(const at::Tensor& tensor, at::Tensor shard) {
  const at::Tensor& local = distributed(tensor, "to_local").local;
  if (shard.requires_grad() || shard.is_same(local) || !shard.has_storage() || !shard.is_alias_of(local))
    return shard;
  c10::TensorImpl* impl = local.unsafeGetTensorImpl();
  if (auto* shown = dynamic_cast<ShownShard*>(impl->get_backend_meta())) {
    if (auto held = shown->object.lock()) {
      at::Tensor object(std::move(held));
      if (is_as_given(object, shard)) return object;
    }
  }
  impl->set_backend_meta(c10::make_intrusive<ShownShard>(shard));
  return shard;
}

at::Tensor to_local(const at::Tensor& tensor, const OptionalPlacements& gradient) {
  at::Tensor shard;
  {
    const py::gil_scoped_release no_lock;
    shard = DTensor(tensor).to_local({gradient});
  }
  return one_object(tensor, std::move(shard));
}

at::Tensor local_tensor(const at::Tensor& tensor) {
  const at::NoGradGuard no_grad;
  return to_local(tensor, std::nullopt);
}

// A scope as Python's `with` opens and closes it.
template <class Scope>
void bind_scope(py::module_& m, const char* name, const char* doc) {
  struct Holder {
    std::vector<std::unique_ptr<Scope>> open;
  };
  py::class_<Holder>(m, name, doc)
      .def(py::init<>())
      .def("__enter__", [](Holder& holder) { holder.open.push_back(std::make_unique<Scope>()); })
      .def("__exit__", [name](Holder& holder, const py::args&) {
        TORCH_CHECK(!holder.open.empty(), "meshtorch: ", name,
                    " is left, and was not entered\n  do: open it by `with`");
        holder.open.pop_back();
      });
}

// `tensor_meta` has shape, stride and dtype.
DTensorSpec make_spec(const DeviceMesh& mesh, const Placements& placements, const py::object& tensor_meta) {
  TORCH_CHECK_VALUE(!tensor_meta.is_none(), "meshtorch: a DTensorSpec without tensor_meta",
                    "\n  do: give TensorMeta(shape, stride, dtype), as that of another spec");
  return {mesh, placements, tensor_meta.attr("shape").cast<Numbers>(),
          tensor_meta.attr("stride").cast<Numbers>(), tensor_meta.attr("dtype").cast<at::ScalarType>()};
}

using Ranges = std::vector<std::vector<std::pair<std::int64_t, std::int64_t>>>;

Ranges held_ranges(const Shape& shape, const Placements& placements, const MeshImpl& mesh) {
  Ranges dims;
  for (const auto& runs : held_in_each_dim(shape, placements, mesh.shape(), coordinate_in(mesh))) {
    auto& pairs = dims.emplace_back();
    for (const Range& run : runs) pairs.emplace_back(run.begin, run.size);
  }
  return dims;
}

void bind_spec(py::module_& m) {
  py::class_<DTensorSpec>(
      m, "DTensorSpec",
      R"(The mesh and placements of a distributed tensor, and its global shape, strides and type.

>>> spec = meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)])._spec
>>> spec.shape, spec.stride
(torch.Size([4, 2]), (2, 1))
)")
      .def(py::init(&make_spec), py::arg("mesh"), py::arg("placements"), py::arg("tensor_meta") = py::none())
      .def_property_readonly("mesh", [](const DTensorSpec& s) { return s.mesh; })
      .def_property_readonly("device_mesh", [](const DTensorSpec& s) { return s.mesh; })
      .def_property_readonly("placements", [](const DTensorSpec& s) { return to_python(s.placements); })
      .def_property_readonly(
          "shape", [](const DTensorSpec& s) { return py::module_::import("torch").attr("Size")(s.shape); })
      .def_property_readonly("stride", [](const DTensorSpec& s) { return py::tuple(py::cast(s.strides)); })
      .def_property_readonly("dtype", [](const DTensorSpec& s) { return s.dtype; })
      .def_property_readonly("ndim", [](const DTensorSpec& s) { return s.shape.size(); })
      .def(
          "__eq__",
          [](const DTensorSpec& a, const DTensorSpec& b) {
            return a.mesh == b.mesh && a.placements == b.placements && a.shape == b.shape &&
                   a.strides == b.strides && a.dtype == b.dtype;
          },
          py::is_operator())
      .def("__hash__",
           [](const DTensorSpec& s) {
             return py::hash(py::make_tuple(s.mesh.hash(), to_python(s.placements),
                                            py::tuple(py::cast(s.shape)), py::tuple(py::cast(s.strides)),
                                            static_cast<int>(s.dtype)));
           })
      .def("__repr__", &DTensorSpec::to_string);
}

}  // namespace

void bind_tensors(py::module_& m) {
  const auto no_mesh = py::arg("device_mesh") = py::none();
  const auto no_placements = py::arg("placements") = py::none();
  const auto no_gradient = py::arg("grad_placements") = py::none();
  bind_spec(m);
  m.def("is_dtensor", &is_dtensor, py::arg("tensor"),
        R"(Returns whether a tensor is distributed, as isinstance(tensor, DTensor) does.

>>> meshtorch.is_dtensor(torch.ones(2)), meshtorch.is_dtensor(meshtorch.ones(2, device_mesh=mesh))
(False, True)
)");
  m.def("from_local", &from_local, py::arg("local_tensor"), no_mesh, no_placements, py::kw_only(),
        py::arg("run_check") = false, py::arg("shape") = py::none(), py::arg("stride") = py::none(),
        no_gradient, WithoutGil(),
        R"(Returns the distributed tensor of which each rank gives its shard.

Without shape and stride the shards are taken as equal and nothing is sent; run_check exchanges their sizes.

>>> x = meshtorch.DTensor.from_local(torch.full((2, 3), float(rank)), mesh, [meshtorch.Shard(0)])
>>> x.shape
torch.Size([4, 3])
)");
  m.def("to_local", &to_local, py::arg("self"), py::kw_only(), no_gradient,
        R"(Returns this rank's shard, which shares memory with the distributed tensor. It is differentiable.

>>> meshtorch.ones(3, device_mesh=mesh, placements=[meshtorch.Shard(0)]).to_local()
tensor([1., 1.])
)");
  m.def(
      "full_tensor",
      [](const at::Tensor& self, const OptionalPlacements& gradient) {
        return DTensor(self).full_tensor({gradient});
      },
      py::arg("self"), py::kw_only(), no_gradient, WithoutGil(),
      R"(Returns the whole tensor on every rank. Every rank of the mesh must call it. It is differentiable.

>>> meshtorch.ones(3, device_mesh=mesh, placements=[meshtorch.Shard(0)]).full_tensor()
tensor([1., 1., 1.])
)");
  m.def(
      "redistribute", &redistribute, py::arg("self"), no_mesh, no_placements, py::kw_only(),
      py::arg("async_op") = false, py::arg("forward_dtype") = py::none(),
      py::arg("backward_dtype") = py::none(), WithoutGil(),
      R"(Returns the same tensor with other placements, or on another mesh. Every rank must call it. It is differentiable.

>>> x = meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)])
>>> x.redistribute(placements=[meshtorch.Shard(1)]).to_local().shape
torch.Size([4, 1])
)");
  m.def("placements", [](const at::Tensor& self) { return to_python(DTensor(self).placements()); });
  m.def("device_mesh", [](const at::Tensor& self) { return DTensor(self).device_mesh(); });
  m.def("spec", [](const at::Tensor& self) { return DTensor(self).spec(); });
  m.def("local_tensor", &local_tensor);
  m.def(
      "stored_tensor",
      [](const at::Tensor& self) {
        const DTensorMeta& meta = distributed(self, "stored_tensor");
        refresh(meta, Reader::this_rank);
        note_exposed(meta.local);
        return meta.local;
      },
      WithoutGil(), "What this rank holds: its shard, or a stand-in on a rank outside the mesh.");
  m.def(
      "held_ranges",
      [](const at::Tensor& self) {
        const DTensorMeta& meta = *meta_of(DTensor(self));
        return held_ranges(self.sizes().vec(), meta.layout->placements, *meta.mesh);
      },
      "For each dim the (begin, size) of the runs of global indices that this rank holds.");
  m.def(
      "explain_redistribute",
      [](const at::Tensor& tensor, const Placements& placements) {
        return explain_redistribute(tensor, placements);
      },
      py::arg("tensor"), py::arg("placements"),
      R"(Returns the steps, bytes and peak memory of a redistribution as text, without running it.

>>> from meshtorch.debug import explain_redistribute
>>> x = meshtorch.ones(4, device_mesh=mesh, placements=[meshtorch.Shard(0)])
>>> "all_gather" in explain_redistribute(x, [meshtorch.Replicate()])
True
)");
  m.def("distribute_tensor", &distribute_plain_or_same, py::arg("tensor"), no_mesh, no_placements,
        py::kw_only(), py::arg("src_data_rank") = 0, WithoutGil(),
        R"(Returns the tensor split over the mesh as placements say; without them it is replicated.

Every rank gives the whole tensor. The data of rank src_data_rank of each axis counts; with None each rank keeps its
part of its own data, and nothing is sent.

>>> x = meshtorch.distribute_tensor(torch.arange(6.0).view(3, 2), mesh, [meshtorch.Shard(0)])
>>> x.to_local()
tensor([[0., 1.],
        [2., 3.]])
)");
  m.def(
      "held_ranges_of",
      [](const Shape& shape, const DeviceMesh& mesh, const Placements& placements) {
        return held_ranges(shape, placements, impl_of(mesh));
      },
      "What this rank holds of each dim of a tensor of this shape.");
  m.def("replace_data", &replace_data, py::arg("parameter"), py::arg("data"), WithoutGil(),
        "Gives a parameter other data, on another device if need be; it stays the same object.");
  m.def("check_replicates_over", &check_replicates_over, py::arg("tensor"), py::arg("mesh"));
  m.def(
      "replicated_over",
      [](const at::Tensor& tensor, const DeviceMesh& mesh) {
        const at::Tensor replicated = replicated_over(tensor, mesh);
        return replicated.defined() ? std::optional(replicated) : std::nullopt;
      },
      py::arg("tensor"), py::arg("mesh"), WithoutGil(),
      "The tensor replicated over the axes of the mesh; None if it has them already.");
  bind_scope<implicit_replication>(
      m, "implicit_replication",
      R"(While it is open, plain tensors that meet distributed ones count as replicated.

>>> x = meshtorch.ones(4, device_mesh=mesh, placements=[meshtorch.Shard(0)])
>>> with meshtorch.implicit_replication():
...     (x + torch.ones(4)).to_local()
tensor([2., 2.])
)");
  bind_scope<keep_layout>(
      m, "keep_layout",
      R"(While it is open, operators leave tensors split that are no parameters, where they can.

>>> x = meshtorch.ones(4, 2, device_mesh=mesh, placements=[meshtorch.Shard(0)])
>>> with meshtorch.keep_layout():
...     torch.nn.functional.linear(x, meshtorch.ones(3, 2, device_mesh=mesh)).placements
(Shard(dim=0),)
)");
  bind_scope<loss_parallel>(
      m, "loss_parallel",
      R"(While it is open, cross entropy works on logits that are split by class, and does not gather them.

>>> from meshtorch.parallel import loss_parallel
>>> logits = meshtorch.zeros(2, 4, device_mesh=mesh, placements=[meshtorch.Shard(1)])
>>> with loss_parallel():
...     loss = torch.nn.functional.cross_entropy(logits, torch.tensor([0, 3]))
>>> round(loss.item(), 4)
1.3863
)");
}

}  // namespace meshtorch::python
