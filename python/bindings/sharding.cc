// register_sharding from Python: a function that lists the placements with which an operator may run.
#include <ATen/ATen.h>
#include <torch/csrc/jit/python/pybind_utils.h>

#include "bindings/bindings.h"
#include "prove/register_options.h"
#include "rules/own_rules.h"

namespace meshtorch::python {
using namespace internal;
namespace {

py::object argument_to_python(const StackArguments& call, std::size_t argument) {
  const c10::IValue& value = call.arguments()[argument];
  if (value.isTensor() && is_dtensor(value.toTensor())) return py::cast(DTensor(value.toTensor()).spec());
  return torch::jit::toPyObject(value);
}

bool is_default(const c10::Argument& argument, const c10::IValue& value) {
  if (value.isNone()) return true;
  const auto& usual = argument.default_value();
  return usual && !value.isTensor() && *usual == value;
}

// The arguments as the function takes them: tensors as their specs, those of the registered variant that the
// call has not, as None.
py::object call_function(const py::function& function, const c10::FunctionSchema& registered,
                         const StackArguments& call) {
  py::list positional;
  py::dict named;
  for (const c10::Argument& argument : registered.arguments()) {
    const auto number = call.info().find(argument.name());
    if (!argument.kwarg_only()) {
      positional.append(number ? argument_to_python(call, *number) : py::none());
    } else if (!number) {
      named[py::str(argument.name())] = py::none();
    } else if (!is_default(argument, call.arguments()[*number])) {
      named[py::str(argument.name())] = argument_to_python(call, *number);
    }
  }
  return function(*positional, **named);
}

Placement placement_or_replicated(const py::handle& placement) {
  return placement.is_none() ? Placement() : placement.cast<Placement>();
}

// The placements of the tensors of one argument that the call has: one for all, or one for each element.
void append_operands(const py::handle& given, const StackArguments& call, std::size_t argument,
                     Placements& placements) {
  for (const Operand& operand : call.operands()) {
    if (operand.argument != argument) continue;
    const bool is_each = operand.element >= 0 && py::isinstance<py::sequence>(given);
    placements.push_back(placement_or_replicated(is_each
                                                     ? py::object(py::reinterpret_borrow<py::sequence>(
                                                           given)[static_cast<std::size_t>(operand.element)])
                                                     : py::reinterpret_borrow<py::object>(given)));
  }
}

std::vector<ListedOption> options_from(const py::object& listed, const c10::FunctionSchema& registered,
                                       const StackArguments& call) {
  std::vector<ListedOption> options;
  for (const py::handle& pair : listed) {
    const auto [results, operands] = pair.cast<std::pair<py::sequence, py::sequence>>();
    TORCH_CHECK_VALUE(
        py::len(operands) == registered.arguments().size() && py::len(results) == registered.returns().size(),
        "meshtorch: register_sharding: `", call.info().name, "` has ", registered.returns().size(),
        " results and ", registered.arguments().size(), " arguments, the function gave ", py::len(results),
        " and ", py::len(operands), " placements\n  do: give one for each, None where it is no tensor");
    ListedOption option;
    for (const py::handle& result : results) option.results.push_back(placement_or_replicated(result));
    for (std::size_t i = 0; i < registered.arguments().size(); ++i) {
      const auto number = call.info().find(registered.arguments()[i].name());
      if (number && !call.info().arguments[*number].is_out)  // what is only written is no operand of a rule
        append_operands(py::object(operands[i]), call, *number, option.operands);
    }
    options.push_back(std::move(option));
  }
  return options;
}

}  // namespace

void bind_sharding(py::module_& m) {
  m.def(
      "register_sharding",
      [](const std::string& op, const py::function& function) {
        const c10::FunctionSchema registered = operator_named(op).op.schema();  // the operator may go
        // As long as the program: rules are asked until its end, and nobody may drop it after Python's.
        const auto* kept = new py::function(function);
        register_options(op, [kept, registered](const StackArguments& call) {
          const py::gil_scoped_acquire lock;
          return options_from(call_function(*kept, registered, call), registered, call);
        });
      },
      py::arg("op"), py::arg("function"));
  m.def(
      "set_rule",
      [](const std::string& op, const std::string& rule) {
        set_own_rule(op, RuleEntry(Rule::parse(rule)));
        refresh_rules();
      },
      py::arg("op"), py::arg("rule"), "The rule of an operator, which may be registered later.");
}

}  // namespace meshtorch::python
