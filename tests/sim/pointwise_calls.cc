// Calls of the pointwise operators, made from their rules and schemas.
#include "pointwise_calls.h"

#include "operator/operator.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

using Sizes = std::vector<int64_t>;

Value tensor(const TensorText& kind, const Sizes& sizes) {
  Value value;
  value.kind = Value::Kind::tensor;
  value.tensor = kind;
  value.tensor.sizes = sizes;
  return value;
}

Value list(std::vector<Value> items) {
  Value value;
  value.kind = Value::Kind::list;
  value.items = std::move(items);
  return value;
}

Value number(int64_t integer, Value::Kind kind = Value::Kind::integer) {
  Value value;
  value.kind = kind;
  value.integer = integer;
  value.real = static_cast<double>(integer);
  value.text = "floor";  // the one string that pointwise operators need: a rounding mode
  return value;
}

// A value for an argument that has no default, whatever it means.
Value some_value(const c10::Argument& argument) {
  if (argument.default_value() && argument.name() != "rounding_mode") return {};
  const std::string type = argument.type()->str();
  if (type.starts_with("str")) return number(0, Value::Kind::string);
  if (type == "float") return number(2, Value::Kind::real);
  if (type == "bool") return number(0, Value::Kind::boolean);
  if (type.ends_with("[]")) return list({number(2), number(3), number(2)});
  if (type.ends_with("?") && argument.name() != "min") return {};
  return number(argument.name() == "min" ? 1 : 2);
}

// Every list gets three tensors.
Call pointwise_call(const OperatorInfo& info, const TensorText& kind, const Sizes& first,
                    const Sizes& others) {
  Call call(info.op);
  bool is_first = true;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const Sizes& sizes = is_first ? first : others;
    switch (info.arguments[i].kind) {
      case ArgumentInfo::Kind::other:
        call.arguments[i] = some_value(info.op.schema().arguments()[i]);
        continue;
      case ArgumentInfo::Kind::tensor:
        call.arguments[i] = tensor(kind, sizes);
        break;
      case ArgumentInfo::Kind::tensor_list:
        call.arguments[i] = list({tensor(kind, sizes), tensor(kind, {3}), tensor(kind, sizes)});
        break;
    }
    is_first = false;
  }
  return call;
}

bool is_taken(const Call& call) {
  try {
    const torch::NoGradGuard no_grad;
    torch::jit::Stack stack = call.stack(call.tensors());
    call.op.callBoxed(&stack);
    return true;
  } catch (const std::exception&) {
    return false;
  }
}

bool is_pointwise(const std::string& rule) {
  const std::string operands = rule.substr(0, rule.find("->"));
  return operands.find("...") != std::string::npos &&
         operands.find_first_of("abcdefghijklmnopqrstuvwxyz_") == std::string::npos;
}

}  // namespace

std::vector<Call> pointwise_calls() {
  std::vector<Call> all;
  for (const auto& [name, entry] : rule_table().entries()) {
    if (!is_pointwise(entry.describe())) continue;
    const OperatorInfo& info = internal::operator_named(name);
    const auto add = [&](const TensorText& kind, const Sizes& first, const Sizes& others) {
      const Call call = pointwise_call(info, kind, first, others);
      if (!is_taken(call)) return false;
      all.push_back(call);
      return true;
    };
    // The first type that the operator takes, on every shape; whole and complex numbers on one.
    for (const TensorText& kind :
         {TensorText{"p", 0, {}, {}}, {"n", 0, {}, {}}, {"b", 0, {}, {}}, {"z", 0, {}, {}}}) {
      if (!add(kind, {5, 4}, {5, 4})) continue;
      add(kind, {5, 4}, {4});
      add(kind, {5, 1}, {1, 4});
      add(kind, {}, {});
      break;
    }
    for (const char* kind : {"n", "z"}) add({kind, 0, {}, {}}, {3, 2}, {3, 2});
  }
  return all;
}

}  // namespace meshtorch::testing
