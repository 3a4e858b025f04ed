// local_map from Python: Python takes arguments apart and calls the function, the library converts tensors.
#include "meshtorch/local_map.h"

#include <ATen/core/Tensor.h>

#include "bindings/bindings.h"

namespace meshtorch::python {
namespace {

using EachPlacements = std::optional<std::vector<std::optional<Placements>>>;

// None and the empty list both say that a value is no tensor.
std::optional<std::vector<Placements>> without_none(const EachPlacements& each) {
  if (!each) return std::nullopt;
  std::vector<Placements> all;
  for (const auto& one : *each) all.push_back(one.value_or(Placements()));
  return all;
}

// One call of a mapped function, with the settings it refers to.
class Call {
 public:
  Call(detail::LocalMapSettings settings, const std::vector<at::Tensor>& inputs)
      : settings_(std::move(settings)), call_(settings_, inputs) {}
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  at::Tensor input(at::Tensor tensor) {
    call_.input(tensor);
    return tensor;
  }
  at::Tensor output(at::Tensor tensor) {
    call_.output(tensor);
    return tensor;
  }
  detail::LocalMapCall& call() { return call_; }

 private:
  detail::LocalMapSettings settings_;
  detail::LocalMapCall call_;
};

std::unique_ptr<Call> begin_call(const std::vector<std::optional<at::Tensor>>& values,
                                 const EachPlacements& out, const EachPlacements& in,
                                 const EachPlacements& in_grad, const std::optional<DeviceMesh>& mesh,
                                 bool redistribute_inputs) {
  std::vector<at::Tensor> inputs;
  for (const auto& value : values) inputs.push_back(value.value_or(at::Tensor()));
  return std::make_unique<Call>(
      detail::LocalMapSettings{without_none(out), without_none(in), without_none(in_grad), mesh,
                               redistribute_inputs, detail::is_debug_mode()},
      inputs);
}

}  // namespace

void bind_local_map(py::module_& m) {
  py::class_<Call>(m, "LocalMapCall")
      .def(py::init(&begin_call))
      .def("input", &Call::input, WithoutGil())
      .def("other_input", [](Call& c) { c.call().other_input(); })
      .def("is_distributed", [](Call& c) { return c.call().is_distributed(); })
      .def("expect_outputs", [](Call& c, std::size_t outputs) { c.call().expect_outputs(outputs); })
      .def("output", &Call::output, WithoutGil())
      .def("other_output", [](Call& c) { c.call().other_output(); });
}

}  // namespace meshtorch::python
