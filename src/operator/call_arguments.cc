// The arguments of a call that a user names by its operator.
#include "operator/call_arguments.h"

namespace meshtorch::internal {

torch::jit::Stack with_defaults(const OperatorInfo& info, std::vector<c10::IValue> given) {
  const auto& schema = info.op.schema();
  const std::size_t count = schema.arguments().size();
  TORCH_CHECK_VALUE(given.size() <= count, "meshtorch: ", given.size(), " arguments for `", info.name,
                    "`, which takes ", count, "\n  schema ", toString(schema),
                    "\n  do: give its arguments in schema order");
  torch::jit::Stack stack = std::move(given);
  for (std::size_t i = stack.size(); i < count; ++i) {
    const auto& fallback = schema.arguments()[i].default_value();
    TORCH_CHECK_VALUE(fallback, "meshtorch: argument ", info.arguments[i].name, " of `", info.name,
                      "` is missing, and has no default\n  schema ", toString(schema),
                      "\n  do: give its arguments in schema order");
    stack.push_back(*fallback);
  }
  return stack;
}

}  // namespace meshtorch::internal
