// New distributed tensors and random numbers from Python.
#include <ATen/ATen.h>
#include <pybind11/complex.h>

#include <complex>
#include <variant>

#include "bindings/bindings.h"
#include "meshtorch/random.h"

namespace meshtorch::python {
namespace {

using Numbers = std::vector<std::int64_t>;
using Number = std::variant<bool, std::int64_t, double, std::complex<double>>;

at::Scalar to_scalar(const Number& number) {
  if (const auto* complex = std::get_if<std::complex<double>>(&number)) return c10::complex<double>(*complex);
  if (const auto* real = std::get_if<double>(&number)) return *real;
  if (const auto* integer = std::get_if<std::int64_t>(&number)) return *integer;
  return std::get<bool>(number);
}

// What every factory takes beside its size.
struct Lying {
  DeviceMesh mesh;
  Placements placements;
  at::TensorOptions options;

  Lying(const std::optional<DeviceMesh>& given, const std::optional<Placements>& lies,
        const std::optional<at::ScalarType>& dtype, bool requires_grad)
      : mesh(mesh_or_current(given)),
        placements(placements_or_replicated(lies, mesh)),
        options(at::TensorOptions().dtype(dtype).requires_grad(requires_grad)) {}
};

// Binds make(size…, lying).
template <class... Size, class Make, class... Arg>
void bind_factory(py::module_& m, const char* name, const Make& make, const Arg&... arguments) {
  m.def(
      name,
      [make](const Size&... size, const std::optional<DeviceMesh>& mesh,
             const std::optional<Placements>& placements, const std::optional<at::ScalarType>& dtype,
             bool requires_grad) { return make(size..., Lying(mesh, placements, dtype, requires_grad)); },
      arguments..., py::kw_only(), py::arg("device_mesh") = py::none(), py::arg("placements") = py::none(),
      py::arg("dtype") = py::none(), py::arg("requires_grad") = false, WithoutGil());
}

}  // namespace

void bind_factories(py::module_& m) {
  const py::arg size("size");
  bind_factory<Numbers>(
      m, "empty",
      [](const Numbers& n, const Lying& l) -> at::Tensor {
        return empty(n, l.mesh, l.placements, l.options);
      },
      size);
  bind_factory<Numbers>(
      m, "zeros",
      [](const Numbers& n, const Lying& l) -> at::Tensor {
        return zeros(n, l.mesh, l.placements, l.options);
      },
      size);
  bind_factory<Numbers>(
      m, "ones",
      [](const Numbers& n, const Lying& l) -> at::Tensor { return ones(n, l.mesh, l.placements, l.options); },
      size);
  bind_factory<Numbers>(
      m, "rand",
      [](const Numbers& n, const Lying& l) -> at::Tensor { return rand(n, l.mesh, l.placements, l.options); },
      size);
  bind_factory<Numbers>(
      m, "randn",
      [](const Numbers& n, const Lying& l) -> at::Tensor {
        return randn(n, l.mesh, l.placements, l.options);
      },
      size);
  bind_factory<Numbers, Number>(
      m, "full",
      [](const Numbers& n, const Number& value, const Lying& l) -> at::Tensor {
        return full(n, to_scalar(value), l.mesh, l.placements, l.options);
      },
      size, py::arg("fill_value"));
  bind_factory<std::int64_t, std::int64_t, Numbers>(
      m, "randint",
      [](std::int64_t low, std::int64_t high, const Numbers& n, const Lying& l) -> at::Tensor {
        return randint(low, high, n, l.mesh, l.placements, l.options);
      },
      py::arg("low"), py::arg("high"), size);
  bind_factory<std::int64_t>(
      m, "randperm",
      [](std::int64_t n, const Lying& l) -> at::Tensor {
        return randperm(n, l.mesh, l.placements, l.options);
      },
      py::arg("n"));
  bind_factory<std::int64_t>(
      m, "arange",
      [](std::int64_t end, const Lying& l) -> at::Tensor {
        return arange(end, l.mesh, l.placements, l.options);
      },
      py::arg("end"));
  bind_factory<std::int64_t>(
      m, "eye",
      [](std::int64_t n, const Lying& l) -> at::Tensor { return eye(n, l.mesh, l.placements, l.options); },
      py::arg("n"));
  m.def("manual_seed", &manual_seed, py::arg("seed"),
        R"(Sets the seed of random numbers of distributed tensors. Every rank must give the same.

>>> meshtorch.manual_seed(7)
)");
  m.def(
      "get_rng_state", [] { return get_rng_state().to_tensor(); },
      R"(Returns the state of those random numbers, 16 bytes.

>>> state = meshtorch.get_rng_state()
>>> state.shape
torch.Size([16])
)");
  m.def(
      "set_rng_state", [](const at::Tensor& bytes) { set_rng_state(RngState::from_tensor(bytes)); },
      py::arg("state"),
      R"(Restores a state that get_rng_state returned.

>>> meshtorch.set_rng_state(meshtorch.get_rng_state())
)");
}

}  // namespace meshtorch::python
