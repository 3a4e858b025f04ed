// CommDebugMode, tables and drawings from Python.
#include "meshtorch/debug.h"

#include <ATen/core/Tensor.h>

#include <algorithm>

#include "bindings/bindings.h"
#include "debug/running_modules.h"
#include "debug/sharding_table.h"
#include "meshtorch/rule.h"
#include "meshtorch/visualize.h"

namespace meshtorch::python {
using namespace internal;
namespace {

py::dict counts_to_python(const CommCounts& counts) {
  py::dict result;
  for (const auto& [collective, statistics] : counts.statistics()) {
    result[py::str(std::string(to_string(collective)))] = statistics.count;
  }
  return result;
}

py::dict passes_to_python(const ModuleCommCounts& counts) {
  return py::dict(py::arg("forward") = counts_to_python(counts.forward),
                  py::arg("backward") = counts_to_python(counts.backward));
}

py::dict counts_by_module(const CommDebugMode& mode) {
  py::dict result;
  for (const auto& [path, counts] : mode.get_module_counts())
    result[py::str(path)] = passes_to_python(counts);
  return result;
}

// Python's `with` starts to count; the object may be made long before.
// PyTorch's levels of noise: those below and above are the nearest.
TableDetail detail_of(int level) {
  return static_cast<TableDetail>(std::clamp(level, 0, static_cast<int>(TableDetail::all)));
}

std::unique_ptr<CommDebugMode> make_idle_mode() {
  auto mode = std::make_unique<CommDebugMode>(CommDebugOptions{.notes_operators = true});
  mode->stop();
  return mode;
}

void bind_policy(py::module_& m) {
  m.def(
      "set_fallback_policy",
      [](const std::string& policy) {
        TORCH_CHECK_VALUE(policy == "warn" || policy == "error" || policy == "silent",
                          "meshtorch: unknown fallback policy \"", policy,
                          "\"\n  do: use \"warn\", \"error\" or \"silent\"");
        set_fallback_policy(policy == "warn"    ? FallbackPolicy::warn
                            : policy == "error" ? FallbackPolicy::error
                                                : FallbackPolicy::silent);
      },
      py::arg("policy"),
      R"(Sets what an operator without a rule does on split tensors: "warn", "error" or "silent".

>>> meshtorch.set_fallback_policy("error")
>>> meshtorch.set_fallback_policy("warn")
)");
  m.def(
      "decision_cache_statistics",
      [](const DeviceMesh& mesh) {
        const CacheStatistics s = decision_cache_statistics(mesh);
        return py::dict(py::arg("hits") = s.hits, py::arg("misses") = s.misses, py::arg("size") = s.size);
      },
      py::arg("mesh"),
      R"(Returns how often a call on tensors of the mesh looked like an earlier one: hits, misses, and decisions kept.

>>> from meshtorch.debug import decision_cache_statistics
>>> sorted(decision_cache_statistics(mesh))
['hits', 'misses', 'size']
)");
}

}  // namespace

void bind_debug(py::module_& m) {
  py::class_<CommDebugMode>(m, "CommDebugMode")
      .def(py::init(&make_idle_mode))
      .def("restart", &CommDebugMode::restart)
      .def("stop", &CommDebugMode::stop)
      .def("counts", [](const CommDebugMode& mode) { return counts_to_python(mode.get_comm_counts()); })
      .def("pass_counts", [](const CommDebugMode& mode) { return passes_to_python(mode.get_pass_counts()); })
      .def("module_counts", &counts_by_module)
      .def("total", &CommDebugMode::get_total_counts)
      .def("table", &CommDebugMode::table)
      .def("module_table",
           [](const CommDebugMode& mode, int level) { return mode.module_table(detail_of(level)); })
      .def("json", [](const CommDebugMode& mode, int level) { return mode.json(detail_of(level)); });
  m.def("enter_module", &enter_module, py::arg("path"));
  m.def("leave_module", &leave_module);
  m.def("sharding_table", py::overload_cast<const NamedTensors&>(&sharding_table), py::arg("parameters"));
  m.def("draw_sharding", [](const at::Tensor& t) { return visualize_sharding(t); });
  m.def("draw_sharding_svg", [](const at::Tensor& t) { return visualize_sharding_svg(t); });
  m.def("draw_sharding_html", [](const at::Tensor& t) { return visualize_sharding_html(t); });
  bind_policy(m);
}

}  // namespace meshtorch::python
