// Calls by operator name: arguments from the schema, and the pointwise operators from their rules.
#include "calls.h"

#include "../dist/sample_inputs.h"
#include "dispatch/operand.h"

namespace meshtorch::testing {
namespace {

using namespace inputs;
using torch::Tensor;
using Tensors = std::vector<Tensor>;

bool is_list(const ArgumentInfo& argument) { return argument.kind == ArgumentInfo::Kind::tensor_list; }

// A number for each argument that has no default, whatever it means.
c10::IValue some_number(const c10::Argument& argument, std::size_t list_length) {
  if (argument.default_value()) return *argument.default_value();
  const std::string type = argument.type()->str();
  if (type == "number" && argument.name() == "min") return -1;
  if (type == "number[]" || type == "Scalar[]") {
    c10::List<c10::Scalar> numbers;
    for (std::size_t i = 0; i < list_length; ++i)
      numbers.push_back(c10::Scalar(2.0 + static_cast<double>(i)));
    return numbers;
  }
  if (type == "number") return 2;
  if (type == "float") return 0.5;
  if (type == "int") return 1;
  if (type == "bool") return false;
  if (type == "str?" || type == "str") return "floor";
  return {};
}

// The call on these tensors, one for each tensor argument; a list gets three that broadcast alike.
Call pointwise_call(const OperatorInfo& info, const Tensors& tensors) {
  Call call{info.name, {}, {}};
  std::size_t next = 0;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const ArgumentInfo& argument = info.arguments[i];
    if (argument.kind == ArgumentInfo::Kind::other) {
      call.others[argument.name] = some_number(info.op.schema().arguments()[i], 3);
      continue;
    }
    const Tensor& t = tensors[next++];
    if (is_list(argument)) {
      call.tensors.emplace_back(Tensors{t, t.flatten().slice(0, 0, 3).clone(), t.clone()});
    } else {
      call.tensors.emplace_back(t);
    }
  }
  return call;
}

bool is_taken(const Call& call) {
  try {
    torch::jit::Stack stack = arguments_of(call);
    const torch::NoGradGuard no_grad;
    operator_named(call.op).op.callBoxed(&stack);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

// Numbers of one type for which most functions are defined, and not constant.
Tensor sample_of_type(at::IntArrayRef sizes, at::ScalarType type, int64_t seed, double shift) {
  if (type == at::kBool) return x(sizes, seed) > 0;
  if (type == at::kLong) return (x(sizes, seed) * 4).to(type).abs() + 1;
  const Tensor numbers = x(sizes, seed) / 5 + 0.55 + shift;
  return type == at::kComplexDouble ? torch::complex(numbers, x(sizes, seed + 9) / 3) : numbers.to(type);
}

}  // namespace

torch::jit::Stack arguments_of(const Call& call) {
  const OperatorInfo& info = operator_named(call.op);
  torch::jit::Stack stack;
  std::size_t next = 0;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const ArgumentInfo& argument = info.arguments[i];
    const auto given = call.others.find(argument.name);
    if (given != call.others.end()) {
      stack.push_back(given->second);
    } else if (argument.kind != ArgumentInfo::Kind::other && next < call.tensors.size()) {
      const c10::IValue& value = call.tensors[next++];
      stack.push_back(value.isTensor() && !value.toTensor().defined() ? c10::IValue() : value);
    } else {
      stack.push_back(some_number(info.op.schema().arguments()[i], 1));
    }
  }
  return stack;
}

Sample sample_of(const Call& call) {
  Sample sample{call.op, {}, nullptr};
  const OperatorInfo& info = operator_named(call.op);
  const torch::jit::Stack arguments = arguments_of(call);
  visit_tensors(info, arguments, [&](const Tensor& t, std::size_t, int) { sample.inputs.push_back(t); });
  sample.run = [arguments, &info](const Tensors& inputs) {
    torch::jit::Stack stack = arguments;
    std::vector<Tensors> lists(stack.size());
    std::size_t next = 0;
    visit_tensors(info, arguments, [&](const Tensor&, std::size_t argument, int element) {
      if (element < 0) {
        stack[argument] = inputs[next++];
      } else {
        lists[argument].push_back(inputs[next++]);
      }
    });
    for (std::size_t i = 0; i < stack.size(); ++i) {
      if (!lists[i].empty()) stack[i] = lists[i];
    }
    info.op.callBoxed(&stack);
    Tensors results;
    for (const c10::IValue& value : stack) {
      if (value.isTensor() && value.toTensor().defined()) results.push_back(value.toTensor());
      if (value.isTensorList()) {
        for (const Tensor& t : value.toTensorVector()) results.push_back(t);
      }
    }
    return results;
  };
  return sample;
}

std::vector<Call> pointwise_calls() {
  std::vector<Call> all;
  for (const auto& [name, entry] : rule_table().entries()) {
    const std::string rule = entry.describe();
    if (rule.find("...") == std::string::npos) continue;
    if (rule.substr(0, rule.find("->")).find_first_of("abcdefghijklmnopqrstuvwxyz_") != std::string::npos)
      continue;
    const OperatorInfo& info = operator_named(name);
    for (const at::ScalarType type : {at::kDouble, at::kLong, at::kBool, at::kComplexDouble, at::kFloat}) {
      const auto add = [&](at::IntArrayRef first, at::IntArrayRef others, double shift) {
        Tensors tensors{sample_of_type(first, type, 0, shift)};
        while (tensors.size() < info.arguments.size())
          tensors.push_back(sample_of_type(others, type, static_cast<int64_t>(tensors.size()), shift));
        const Call call = pointwise_call(info, tensors);
        if (is_taken(call)) all.push_back(call);
      };
      add({5, 4}, {5, 4}, 0);
      if (type != at::kDouble) continue;
      add({5, 4}, {4}, 0);
      add({5, 1}, {1, 4}, 0);
      add({5, 4}, {}, 0);
      add({}, {}, 0);
      add({5, 4}, {5, 4}, 1.5);  // functions that are defined above 1
    }
  }
  return all;
}

std::vector<Call> all_calls() {
  std::vector<Call> all;
  for (auto* family :
       {pointwise_calls, reduction_calls, shape_calls, index_calls, network_calls, pooling_calls}) {
    for (Call& call : family()) all.push_back(std::move(call));
  }
  return all;
}

}  // namespace meshtorch::testing
