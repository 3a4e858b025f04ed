// An operator call on the dispatcher's stack, as the rules see it.
#pragma once

#include "operator/operand.h"
#include "rules/table.h"

namespace meshtorch::internal {

// The tensors among these values, list elements one by one.
std::vector<at::Tensor> tensors_in(c10::ArrayRef<c10::IValue> values);

class StackArguments : public OpArguments {
 public:
  StackArguments(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments)
      : info_(info), operands_(operands), arguments_(arguments) {}

  std::string_view name() const override { return info_.name; }
  bool has(std::string_view argument) const override;
  Shape shape(std::string_view tensor) const override;
  std::vector<Shape> shapes(std::string_view tensor_list) const override;
  std::int64_t integer(std::string_view argument) const override;
  bool flag(std::string_view argument) const override;
  std::vector<std::int64_t> integers(std::string_view argument) const override;
  std::vector<Index> indices(std::string_view tensor_list) const override;
  bool is_nonzero_number(std::string_view argument) const override;
  bool is_complex(std::string_view tensor) const override;

  std::size_t index(std::string_view argument) const;
  const OperatorInfo& info() const { return info_; }
  const Operands& operands() const { return operands_; }
  c10::ArrayRef<c10::IValue> arguments() const { return arguments_; }

 private:
  const c10::IValue& value(std::string_view argument) const { return arguments_[index(argument)]; }

  const OperatorInfo& info_;
  const Operands& operands_;
  c10::ArrayRef<c10::IValue> arguments_;
};

}  // namespace meshtorch::internal
