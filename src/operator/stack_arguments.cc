// Arguments of a call by name.
#include "operator/stack_arguments.h"

#include "operator/known_number.h"

namespace meshtorch::internal {

std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values) {
  std::vector<at::Tensor> found;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) {
      found.push_back(value.toTensor());
    } else if (value.isTensorList()) {
      for (const at::Tensor& t : value.toTensorVector()) found.push_back(t);
    }
  }
  return found;
}

std::size_t StackArguments::index(std::string_view argument) const {
  const auto found = info_.find(argument);
  TORCH_INTERNAL_ASSERT(found, "`", info_.name, "` has no argument ", argument);
  return *found;
}

bool StackArguments::has(std::string_view argument) const {
  const auto found = info_.find(argument);
  if (!found) return false;
  const c10::IValue& given = arguments_[*found];
  return !given.isNone() && !(given.isTensor() && !given.toTensor().defined());
}

Shape StackArguments::shape(std::string_view tensor) const { return value(tensor).toTensor().sizes().vec(); }

std::vector<Shape> StackArguments::shapes(std::string_view tensor_list) const {
  const std::size_t i = index(tensor_list);
  std::vector<Shape> all;
  for (const Operand& operand : operands_) {
    if (operand.argument == i) all.push_back(operand.tensor.sizes().vec());
  }
  return all;
}

std::int64_t StackArguments::integer(std::string_view argument) const {
  const c10::IValue& number = value(argument);
  return number.isBool() ? static_cast<std::int64_t>(number.toBool()) : number.toInt();
}

bool StackArguments::flag(std::string_view argument) const {
  const c10::IValue& truth = value(argument);
  return !truth.isNone() && truth.toBool();
}

std::vector<std::int64_t> StackArguments::integers(std::string_view argument) const {
  const c10::IValue& numbers = value(argument);
  if (numbers.isInt()) return {numbers.toInt()};
  std::vector<std::int64_t> all;
  if (numbers.isNone()) return all;
  for (const c10::IValue& item : numbers.toList())
    all.push_back(item.isBool() ? static_cast<std::int64_t>(item.toBool()) : item.toInt());
  return all;
}

std::vector<OpArguments::Index> StackArguments::indices(std::string_view tensor_list) const {
  const std::size_t i = index(tensor_list);
  std::vector<Index> all(arguments_[i].toListRef().size(), Index::none);
  for (const Operand& operand : operands_) {
    if (operand.argument != i) continue;
    const at::ScalarType type = operand.tensor.scalar_type();
    const bool is_mask = type == at::kBool || type == at::kByte;
    all[static_cast<std::size_t>(operand.element)] = is_mask ? Index::mask : Index::places;
  }
  return all;
}

bool StackArguments::is_nonzero_number(std::string_view argument) const {
  return known_number(value(argument)) == KnownNumber::nonzero;
}

bool StackArguments::is_complex(std::string_view tensor) const {
  return value(tensor).toTensor().is_complex();
}

}  // namespace meshtorch::internal
