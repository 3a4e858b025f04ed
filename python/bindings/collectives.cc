// Functional collectives from Python.
#include "meshtorch/collectives.h"

#include <ATen/ATen.h>
#include <torch/csrc/distributed/c10d/Types.hpp>

#include <string_view>

#include "bindings/bindings.h"
#include "meshtorch/process_group.h"
#include "signature/call_subject.h"

namespace meshtorch::python {
namespace {

// While it lives, collectives are called from the line of the Python program that is running: the innermost
// outside of this package. Python's lock is held when it is made.
class CalledFromPython {
 public:
  CalledFromPython() : line_(innermost_line()), here_(line_) {}

 private:
  static const std::string& package() {
    static const auto* const directory = new std::string([] {
      const auto file = py::module_::import("meshtorch").attr("__file__").cast<std::string>();
      return file.substr(0, file.rfind('/') + 1);
    }());
    return *directory;
  }

  internal::SourceLine innermost_line() {
    auto frame = py::reinterpret_steal<py::object>(
        reinterpret_cast<PyObject*>(PyThreadState_GetFrame(PyThreadState_Get())));
    while (frame) {
      auto* const raw = reinterpret_cast<PyFrameObject*>(frame.ptr());
      auto code = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetCode(raw)));
      const char* file = PyUnicode_AsUTF8(reinterpret_cast<PyCodeObject*>(code.ptr())->co_filename);
      if (file == nullptr) throw py::error_already_set();
      if (!std::string_view(file).starts_with(package())) {
        code_ = std::move(code);
        return {file, static_cast<std::uint32_t>(PyFrame_GetLineNumber(raw))};
      }
      frame = py::reinterpret_steal<py::object>(reinterpret_cast<PyObject*>(PyFrame_GetBack(raw)));
    }
    return {};
  }

  py::object code_;  // holds the name of the file
  const internal::SourceLine line_;
  const internal::CalledFrom here_;
};

// Binds fn(arguments…, group), where Python names the group in any of its ways.
template <class... A, class Fn, class... Arg>
void bind_collective(py::module_& m, const char* name, const char* doc, const Fn& fn,
                     const Arg&... arguments) {
  m.def(
      name,
      [fn](A... values, const py::object& group, const std::string& /*tag: names nothing here*/) {
        const Group ranks = to_group(group);
        const CalledFromPython here;
        const py::gil_scoped_release no_lock;
        return fn(values..., ranks);
      },
      arguments..., py::arg("group"), py::arg("tag") = "", doc);
}

// A meta tensor has nothing to send, and some collectives leave its shape: they need no world.
bool is_own_result(const at::Tensor& tensor) {
  const bool has_own_world = is_initialized() && !is_world_of_torch();
  return tensor.is_meta() && !has_own_world &&
         !py::module_::import("torch.distributed").attr("is_initialized")().cast<bool>();
}

// Binds fn(tensor, …, group), whose result has the shape of the tensor.
template <class A, class Fn, class Arg>
void bind_shape_keeper(py::module_& m, const char* name, const char* doc, const Fn& fn, const Arg& argument) {
  m.def(
      name,
      [fn](const at::Tensor& tensor, A value, const py::object& group, const std::string& /*tag*/) {
        if (is_own_result(tensor)) return at::empty_like(tensor);
        const Group ranks = to_group(group);
        const CalledFromPython here;
        const py::gil_scoped_release no_lock;
        return fn(tensor, value, ranks);
      },
      py::arg("self"), argument, py::arg("group"), py::arg("tag") = "", doc);
}

// The name of a reduction: a text, or a ReduceOp of torch.distributed.
struct ReductionName {
  std::string text;
};
using Text = const ReductionName&;
using One = const at::Tensor&;
using Many = const Tensors&;

// Rank i sends to destinations[i].
RankPairs pairs_of(const std::vector<int>& destinations) {
  RankPairs pairs;
  for (std::size_t from = 0; from < destinations.size(); ++from) {
    pairs.emplace_back(static_cast<int>(from), destinations[from]);
  }
  return pairs;
}

void bind_of_one_tensor(py::module_& m) {
  const py::arg self("self");
  const py::arg op("reduceOp");
  bind_shape_keeper<Text>(
      m, "all_reduce",
      R"(Returns the reduction of all ranks' tensors, which have one shape. The result may be under way; its first use waits.

>>> from meshtorch.functional_collectives import all_reduce
>>> all_reduce(torch.ones(2), "sum", mesh)
tensor([2., 2.])
)",
      [](One t, Text o, const Group& g) { return all_reduce(t, o.text, g); }, op);
  bind_shape_keeper<Text>(
      m, "all_reduce_autograd",
      R"(The same as all_reduce, which is differentiable too.

>>> from meshtorch.functional_collectives import all_reduce_autograd
>>> all_reduce_autograd(torch.ones(2), "sum", mesh)
tensor([2., 2.])
)",

      [](One t, Text o, const Group& g) { return all_reduce_autograd(t, o.text, g); }, op);
  bind_collective<One, std::int64_t>(
      m, "all_gather_tensor",
      R"(Returns all ranks' tensors put together along gather_dim.

>>> from meshtorch.functional_collectives import all_gather_tensor
>>> all_gather_tensor(torch.tensor([float(rank)]), 0, mesh)
tensor([0., 1.])
)",

      [](One t, std::int64_t dim, const Group& g) { return all_gather_tensor(t, dim, g); }, self,
      py::arg("gather_dim"));
  bind_collective<One, std::int64_t>(
      m, "all_gather_tensor_autograd",
      R"(The same as all_gather_tensor, which is differentiable too.

>>> from meshtorch.functional_collectives import all_gather_tensor_autograd
>>> all_gather_tensor_autograd(torch.tensor([float(rank)]), 0, mesh)
tensor([0., 1.])
)",

      [](One t, std::int64_t dim, const Group& g) { return all_gather_tensor_autograd(t, dim, g); }, self,
      py::arg("gather_dim"));
  bind_collective<One, Text, std::int64_t>(
      m, "reduce_scatter_tensor",
      R"(Returns this rank's part of the reduction of all ranks' tensors, split along scatter_dim as torch.chunk splits.

>>> from meshtorch.functional_collectives import reduce_scatter_tensor
>>> reduce_scatter_tensor(torch.ones(3), "sum", 0, mesh)
tensor([2., 2.])
)",

      [](One t, Text o, std::int64_t dim, const Group& g) {
        return reduce_scatter_tensor(t, o.text, dim, g);
      },
      self, op, py::arg("scatter_dim"));
  bind_collective<One, Text, std::int64_t>(
      m, "reduce_scatter_tensor_autograd",
      R"(The same as reduce_scatter_tensor, which is differentiable too.

>>> from meshtorch.functional_collectives import reduce_scatter_tensor_autograd
>>> reduce_scatter_tensor_autograd(torch.ones(3), "sum", 0, mesh)
tensor([2., 2.])
)",

      [](One t, Text o, std::int64_t dim, const Group& g) {
        return reduce_scatter_tensor_autograd(t, o.text, dim, g);
      },
      self, op, py::arg("scatter_dim"));
  bind_shape_keeper<int>(
      m, "broadcast",
      R"(Returns the tensor of rank src of the group.

>>> from meshtorch.functional_collectives import broadcast
>>> broadcast(torch.tensor([float(rank)]), 1, mesh)
tensor([1.])
)",
      [](One t, int source, const Group& g) { return broadcast(t, source, g); }, py::arg("src"));
  bind_collective<One, const std::vector<int>&>(
      m, "permute_tensor",
      R"(Sends the tensor to rank src_dst[this rank], and returns what this rank receives.

>>> from meshtorch.functional_collectives import permute_tensor
>>> permute_tensor(torch.tensor([float(rank)]), [1, 0], mesh)
tensor([1.])
)",

      [](One t, const std::vector<int>& to, const Group& g) { return permute_tensor(t, pairs_of(to), g); },
      self, py::arg("src_dst"));
}

void bind_all_to_all(py::module_& m) {
  using OptionalSplits = const std::optional<Splits>&;
  bind_collective<One, OptionalSplits, OptionalSplits>(
      m, "all_to_all_single",
      R"(Sends piece i of dim 0 to rank i, and returns the pieces from all ranks in their order. Without sizes the pieces are equal.

>>> from meshtorch.functional_collectives import all_to_all_single
>>> all_to_all_single(torch.arange(2.0) + 10 * rank, None, None, mesh)
tensor([ 0., 10.])
)",

      [](One t, OptionalSplits out, OptionalSplits in, const Group& g) {
        return all_to_all_single(t, out.value_or(Splits()), in.value_or(Splits()), g);
      },
      py::arg("self"), py::arg("output_split_sizes"), py::arg("input_split_sizes"));
  bind_collective<One, OptionalSplits, OptionalSplits>(
      m, "all_to_all_single_autograd",
      R"(The same as all_to_all_single, which is differentiable too.

>>> from meshtorch.functional_collectives import all_to_all_single_autograd
>>> all_to_all_single_autograd(torch.arange(2.0) + 10 * rank, None, None, mesh)
tensor([ 0., 10.])
)",

      [](One t, OptionalSplits out, OptionalSplits in, const Group& g) {
        return all_to_all_single_autograd(t, out.value_or(Splits()), in.value_or(Splits()), g);
      },
      py::arg("self"), py::arg("output_split_sizes"), py::arg("input_split_sizes"));
}

void bind_coalesced(py::module_& m) {
  bind_collective<Many, Text>(
      m, "all_reduce_coalesced",
      R"(Returns the reductions of several tensors, in one collective.

>>> from meshtorch.functional_collectives import all_reduce_coalesced
>>> all_reduce_coalesced([torch.ones(1), torch.zeros(2)], "sum", mesh)
[tensor([2.]), tensor([0., 0.])]
)",

      [](Many t, Text o, const Group& g) { return all_reduce_coalesced(t, o.text, g); }, py::arg("self"),
      py::arg("reduceOp"));
  bind_collective<Many>(
      m, "all_gather_into_tensor_coalesced",
      R"(Returns, for each tensor, those of all ranks put together along dim 0, in one collective.

>>> from meshtorch.functional_collectives import all_gather_into_tensor_coalesced
>>> all_gather_into_tensor_coalesced([torch.tensor([float(rank)])], mesh)
[tensor([0., 1.])]
)",

      [](Many t, const Group& g) { return all_gather_into_tensor_coalesced(t, g); }, py::arg("self"));
  bind_collective<Many, Text, const Splits&>(
      m, "reduce_scatter_tensor_coalesced",
      R"(Returns this rank's parts of several reductions, tensor i split along scatter_dim[i], in one collective.

>>> from meshtorch.functional_collectives import reduce_scatter_tensor_coalesced
>>> reduce_scatter_tensor_coalesced([torch.ones(2)], "sum", [0], mesh)
[tensor([2.])]
)",

      [](Many t, Text o, const Splits& dims, const Group& g) {
        return reduce_scatter_tensor_coalesced(t, o.text, dims, g);
      },
      py::arg("inputs"), py::arg("reduceOp"), py::arg("scatter_dim"));
}

}  // namespace

void bind_collectives(py::module_& m) {
  py::class_<ReductionName>(m, "_ReductionName")
      .def(py::init([](const std::string& name) { return ReductionName{name}; }))
      .def(py::init([](const c10d::ReduceOp& op) {
        const py::object kind = py::cast(op).attr("op");  // such as RedOpType.SUM
        return ReductionName{kind.attr("name").cast<std::string>()};
      }))
      .def(py::init([](const c10d::ReduceOp::RedOpType& op) {
        return ReductionName{py::cast(op).attr("name").cast<std::string>()};
      }));
  py::implicitly_convertible<py::str, ReductionName>();
  py::implicitly_convertible<c10d::ReduceOp, ReductionName>();
  py::implicitly_convertible<c10d::ReduceOp::RedOpType, ReductionName>();
  m.def("wait_tensor", &wait_tensor, py::arg("tensor"), WithoutGil(),
        R"(Waits until the tensor's data is there, and returns the same tensor.

>>> from meshtorch.functional_collectives import all_reduce, wait_tensor
>>> wait_tensor(all_reduce(torch.ones(1), "sum", mesh))
tensor([2.])
)");
  m.def("is_pending", &is_pending, py::arg("tensor"));
  bind_of_one_tensor(m);
  bind_all_to_all(m);
  bind_coalesced(m);
  m.def(
      "barrier",
      [](const py::object& group) {
        const Group ranks = to_group(group);
        const py::gil_scoped_release no_lock;
        barrier(ranks);
      },
      py::arg("group") = py::none(),
      R"(Returns when all ranks of the group have called it.

>>> from meshtorch.functional_collectives import barrier
>>> barrier(mesh)
)");
}

}  // namespace meshtorch::python
