// Parallel styles and plans from Python: the library decides layouts and converts tensors, Python has the
// hooks.
#include <ATen/core/Tensor.h>

#include "bindings/bindings.h"
#include "meshtorch/parallelize.h"
#include "nn/plan_axis.h"
#include "nn/prepare.h"
#include "nn/split_styles.h"

namespace meshtorch::python {
using namespace internal;
namespace {

using OptionalPlacement = std::optional<Placement>;
using LayoutList = std::vector<OptionalPlacement>;
using OptionalTensor = std::optional<at::Tensor>;

Layouts to_layouts(const std::optional<LayoutList>& list) { return list ? Layouts(*list) : Layouts(); }

struct AsPython {
  py::object operator()(bool flag) const { return py::bool_(flag); }
  py::object operator()(std::int64_t number) const { return py::int_(number); }
  py::object operator()(const Layouts& layouts) const {
    if (!layouts.is_given()) return py::none();
    py::tuple all(layouts.size());
    for (std::size_t i = 0; i < layouts.size(); ++i) all[i] = one(layouts[i]);
    return layouts.size() == 1 ? py::object(all[0]) : py::object(all);
  }
  py::object operator()(const NamedLayouts& layouts) const {
    if (layouts.empty()) return py::none();
    py::dict all;
    for (const auto& [name, layout] : layouts) all[py::str(name)] = to_python(layout);
    return all;
  }
  static py::object one(const OptionalPlacement& layout) { return layout ? to_python(*layout) : py::none(); }
};

// The arguments that make an equal style in Python.
py::dict arguments_of(const ParallelStyle& style) {
  py::dict arguments;
  for (const auto& [name, value] : style.attributes())
    arguments[py::str(name)] = std::visit(AsPython(), value);
  return arguments;
}

using Convert = void (*)(const ParallelStyle& style, const std::string& module, Values& values,
                         const DeviceMesh& mesh);

// The values after the conversion; None stands for what is not a tensor.
std::vector<OptionalTensor> converted(const Convert& convert, const ParallelStyle& style,
                                      const std::string& module, std::vector<OptionalTensor> tensors,
                                      const std::vector<std::string>& names, const DeviceMesh& mesh) {
  Values values;
  for (std::size_t i = 0; i < tensors.size(); ++i) {
    values.add(i < names.size() ? std::string_view(names[i]) : std::string_view(),
               tensors[i] ? &*tensors[i] : nullptr);
  }
  convert(style, module, values, mesh);
  return tensors;
}

template <class Style>
auto splits(const Style& style, const std::string& kind, std::int64_t inputs, std::int64_t space,
            std::int64_t groups) {
  using Kind = SplittableModule::Kind;
  const Kind which = kind == "linear"      ? Kind::linear
                     : kind == "embedding" ? Kind::embedding
                                           : Kind::convolution;
  return styled(style.options(), SplittableModule{which, inputs, space, groups});
}

template <class Style>
void bind_splitting(py::module_& m, const char* name) {
  py::class_<Style, ParallelStyle, std::shared_ptr<Style>>(m, name)
      .def(py::init([](const OptionalPlacement& input, const OptionalPlacement& output, bool use_local) {
        return std::make_shared<Style>(
            std::decay_t<decltype(std::declval<Style>().options())>{input, output, use_local});
      }))
      .def("styled", &splits<Style>, py::arg("kind"), py::arg("inputs"), py::arg("space"), py::arg("groups"));
}

void bind_replicating(py::module_& m) {
  py::class_<SequenceParallel, ParallelStyle, std::shared_ptr<SequenceParallel>>(m, "SequenceParallel")
      .def(py::init([](std::int64_t dim, bool use_local) {
        return std::make_shared<SequenceParallel>(SequenceOptions{dim, use_local});
      }))
      .def("styled", [](const SequenceParallel& style) { return styled(style.options()); });
  py::class_<NoParallel, ParallelStyle, std::shared_ptr<NoParallel>>(m, "NoParallel")
      .def(py::init([](const OptionalPlacement& input, const OptionalPlacement& output, bool use_local) {
        return std::make_shared<NoParallel>(NoParallelOptions{input, output, use_local});
      }))
      .def("styled", [](const NoParallel& style) { return styled(style.options()); });
}

void bind_preparing(py::module_& m) {
  const py::arg values("values");
  py::class_<PrepareModuleInput, ParallelStyle, std::shared_ptr<PrepareModuleInput>>(m, "PrepareModuleInput")
      .def(py::init([](const std::optional<LayoutList>& input, const std::optional<LayoutList>& desired,
                       const NamedLayouts& named, const NamedLayouts& desired_named, bool use_local) {
        return std::make_shared<PrepareModuleInput>(
            PrepareInputOptions{to_layouts(input), to_layouts(desired), named, desired_named, use_local});
      }))
      .def(
          "convert",
          [](const PrepareModuleInput& style, const std::string& module,
             const std::vector<OptionalTensor>& tensors, const std::vector<std::string>& names,
             const DeviceMesh& mesh) {
            return converted(
                [](const ParallelStyle& s, const std::string& name, Values& v, const DeviceMesh& on) {
                  prepare_inputs(static_cast<const PrepareModuleInput&>(s).options(), name, v, on);
                },
                style, module, tensors, names, mesh);
          },
          py::arg("module"), values, py::arg("names"), py::arg("mesh"), WithoutGil());
  py::class_<PrepareModuleOutput, ParallelStyle, std::shared_ptr<PrepareModuleOutput>>(m,
                                                                                       "PrepareModuleOutput")
      .def(py::init([](const LayoutList& output, const LayoutList& desired, bool use_local) {
        return std::make_shared<PrepareModuleOutput>(
            PrepareOutputOptions{Layouts(output), Layouts(desired), use_local});
      }))
      .def(
          "convert",
          [](const PrepareModuleOutput& style, const std::string& module,
             const std::vector<OptionalTensor>& tensors, const DeviceMesh& mesh) {
            return converted(
                [](const ParallelStyle& s, const std::string& name, Values& v, const DeviceMesh& on) {
                  prepare_outputs(static_cast<const PrepareModuleOutput&>(s).options(), name, v, on);
                },
                style, module, tensors, {}, mesh);
          },
          py::arg("module"), values, py::arg("mesh"), WithoutGil());
  py::class_<PrepareModuleInputOutput, ParallelStyle, std::shared_ptr<PrepareModuleInputOutput>>(
      m, "PrepareModuleInputOutput")
      .def(py::init([](const PrepareModuleInput& input, const PrepareModuleOutput& output) {
        const PrepareInputOptions& in = input.options();
        const PrepareOutputOptions& out = output.options();
        return std::make_shared<PrepareModuleInputOutput>(
            PrepareInputOutputOptions{in.input_layouts, in.desired_input_layouts, in.input_kwarg_layouts,
                                      in.desired_input_kwarg_layouts, in.use_local_output, out.output_layouts,
                                      out.desired_output_layouts, out.use_local_output});
      }));
}

using StylePtr = std::shared_ptr<ParallelStyle>;

std::string plan_to_json(const std::vector<std::pair<std::string, StylePtr>>& entries) {
  std::vector<ParallelizePlan::Entry> plan;
  for (const auto& [pattern, style] : entries) {
    plan.emplace_back(pattern, Style(std::shared_ptr<const ParallelStyle>(style)));
  }
  return ParallelizePlan(std::move(plan)).to_json();
}

// (pattern, name of the style, its arguments) of each entry.
py::list plan_from_json(const std::string& text) {
  const ParallelizePlan plan = ParallelizePlan::from_json(text);
  py::list entries;
  for (const auto& [pattern, style] : plan.entries()) {
    entries.append(py::make_tuple(pattern, style->name(), arguments_of(*style)));
  }
  return entries;
}

}  // namespace

void bind_parallel(py::module_& m) {
  py::class_<SplitStyle>(m, "StyledModule")
      .def_property_readonly("parameters", [](const SplitStyle& s) { return AsPython()(s.parameters); })
      .def(
          "enter",
          [](const SplitStyle& s, const at::Tensor& t, const DeviceMesh& mesh) {
            return s.edges.enter(t, mesh);
          },
          WithoutGil())
      .def(
          "leave",
          [](const SplitStyle& s, const at::Tensor& t, const DeviceMesh& mesh) {
            return s.edges.leave(t, mesh);
          },
          WithoutGil());
  py::class_<ParallelStyle, std::shared_ptr<ParallelStyle>>(m, "ParallelStyle")
      .def_property_readonly("name", &ParallelStyle::name)
      .def("arguments", &arguments_of)
      .def("__str__", &ParallelStyle::to_string);
  bind_splitting<ColwiseParallel>(m, "ColwiseParallel");
  bind_splitting<RowwiseParallel>(m, "RowwiseParallel");
  bind_replicating(m);
  bind_preparing(m);
  m.def("plan_to_json", &plan_to_json);
  m.def("plan_from_json", &plan_from_json);
  m.def("one_axis_of", &one_axis_of, py::arg("mesh"), py::arg("axis") = "");
}

}  // namespace meshtorch::python
