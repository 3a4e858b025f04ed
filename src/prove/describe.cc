// The arguments of a call in short.
#include <ATen/ATen.h>

#include <sstream>

#include "prove/prove.h"

namespace meshtorch::internal {
namespace {

std::string text_of(const at::Tensor& tensor) {
  if (!tensor.defined()) return "none";
  std::string text;
  for (const std::int64_t size : tensor.sizes())
    text.append(text.empty() ? "" : ", ").append(std::to_string(size));
  return "(" + text + ") " + c10::toString(tensor.scalar_type());
}

std::string text_of(const c10::IValue& value) {
  if (value.isNone()) return "none";
  if (value.isTensor()) return text_of(value.toTensor());
  if (value.isBool()) return value.toBool() ? "true" : "false";
  if (value.isList()) {
    std::string text;
    for (const c10::IValue& item : value.toListRef())
      text.append(text.empty() ? "" : ", ").append(text_of(item));
    return "[" + text + "]";
  }
  std::ostringstream text;
  text << value;
  return text.str();
}

}  // namespace

std::string describe_arguments(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  std::string text;
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].isNone()) continue;
    text.append(text.empty() ? "" : ", ")
        .append(info.arguments[i].name)
        .append(" ")
        .append(text_of(arguments[i]));
  }
  return text;
}

}  // namespace meshtorch::internal
