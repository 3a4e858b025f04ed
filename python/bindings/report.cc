// The report page and what it shows beside counts, from Python: decision log, trace, memory.
#include <ATen/core/Tensor.h>

#include <pybind11/stl.h>

#include "bindings/bindings.h"
#include "debug/data_parallel_memory.h"
#include "debug/report_sections.h"
#include "meshtorch/decision_log.h"
#include "meshtorch/memory.h"
#include "meshtorch/trace.h"

namespace meshtorch::python {
using namespace internal;
namespace {

py::dict memory_dict(const RankMemory& m) {
  py::dict fields(py::arg("rank") = m.rank, py::arg("parameters") = m.parameters,
                  py::arg("gradients") = m.gradients, py::arg("optimizer") = m.optimizer,
                  py::arg("activations") = m.activations, py::arg("replicas") = m.replicas);
  if (m.measured_peak) fields["measured_peak"] = *m.measured_peak;
  return fields;
}

py::list memory_list(const std::vector<RankMemory>& memory) {
  py::list list;
  for (const RankMemory& m : memory) list.append(memory_dict(m));
  return list;
}

// A field that is missing keeps its default.
template <class Value>
void read(const py::dict& fields, const char* name, Value& value) {
  if (fields.contains(name) && !fields[name].is_none()) value = fields[name].cast<Value>();
}

RankMemory memory_from(const py::dict& fields) {
  RankMemory m;
  read(fields, "rank", m.rank);
  read(fields, "parameters", m.parameters);
  read(fields, "gradients", m.gradients);
  read(fields, "optimizer", m.optimizer);
  read(fields, "activations", m.activations);
  read(fields, "replicas", m.replicas);
  read(fields, "measured_peak", m.measured_peak);
  return m;
}

report::TrainingStep step_from(const py::dict& fields) {
  report::TrainingStep step;
  read(fields, "step", step.step);
  read(fields, "loss", step.loss);
  read(fields, "seconds", step.seconds);
  read(fields, "tokens_per_second", step.tokens_per_second);
  read(fields, "communication_share", step.communication_share);
  return step;
}

using Parts = std::vector<std::tuple<std::string, std::string, std::string>>;  // name, class, style

void write_report(const std::string& path, const py::dict& given) {
  report::Contents contents;
  read(given, "title", contents.title);
  read(given, "facts", contents.facts);
  read(given, "mesh", contents.mesh);
  if (given.contains("comm")) contents.comm = given["comm"].cast<const CommDebugMode*>();
  read(given, "comm_of", contents.comm_of);
  if (given.contains("decisions")) contents.decisions = given["decisions"].cast<const DecisionLog*>();
  read(given, "traces", contents.traces);
  if (given.contains("steps")) {
    for (const py::handle step : given["steps"])
      contents.steps.push_back(step_from(py::reinterpret_borrow<py::dict>(step)));
  }
  if (given.contains("memory")) {
    for (const py::handle rank : given["memory"])
      contents.memory.push_back(memory_from(py::reinterpret_borrow<py::dict>(rank)));
  }
  read(given, "memory_note", contents.memory_note);
  std::optional<report::internal::ModuleTree> tree;
  if (given.contains("parts")) {
    tree.emplace();
    for (const auto& [name, type, style] : given["parts"].cast<Parts>())
      tree->parts.push_back({name, type, style});
    tree->parameters = given["parameters"].cast<NamedTensors>();
  }
  report::internal::write_page(path, contents, tree);
}

}  // namespace

void bind_report(py::module_& m) {
  // Python's `with` starts and ends them.
  py::class_<DecisionLog>(m, "DecisionLog")
      .def(py::init<>())
      .def("stop", &DecisionLog::stop)
      .def("table", &DecisionLog::table);
  py::class_<TraceMode>(m, "TraceMode")
      .def(py::init<>())
      .def("stop", &TraceMode::stop)
      .def("json", &TraceMode::json)
      .def("save", &TraceMode::save, py::arg("file"), WithoutGil())
      .def("gather", &TraceMode::gather, WithoutGil());
  py::class_<KeptMemory>(m, "KeptMemory",
                         R"(Counts the bytes that operators made since it was made and that are still held.

>>> from meshtorch.debug import KeptMemory
>>> kept = KeptMemory()
>>> y = torch.ones(4) * 2
>>> kept.bytes() >= 16
True
)")
      .def(py::init<>())
      .def("bytes", &KeptMemory::bytes);
  m.def("gather_memory", [](const py::dict& mine) {
    const RankMemory memory = memory_from(mine);
    std::vector<RankMemory> all;
    {
      const py::gil_scoped_release others_may_run;
      all = gather_memory(memory);
    }
    return memory_list(all);
  });
  m.def("estimate_memory",
        [](const std::vector<at::Tensor>& parameters, int optimizer_numbers, std::int64_t activations) {
          return memory_list(estimate_memory(
              parameters, {.optimizer_numbers = optimizer_numbers, .activations = activations}));
        });
  m.def("_estimate_data_parallel", [](const std::vector<std::pair<std::string, at::Tensor>>& parameters,
                                      const DeviceMesh& mesh, const std::vector<std::string>& groups,
                                      bool is_replicated, const std::optional<at::ScalarType>& param_dtype,
                                      int optimizer_numbers, std::int64_t activations) {
    return memory_list(estimate_data_parallel(
        parameters, mesh,
        {.groups = groups,
         .is_replicated = is_replicated,
         .mp_policy = {.param_dtype = param_dtype},
         .memory = {.optimizer_numbers = optimizer_numbers, .activations = activations}}));
  });
  m.def("write_report", &write_report, py::arg("path"), py::arg("given"));
}

}  // namespace meshtorch::python
