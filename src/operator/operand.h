// The tensors among the arguments of a call, before it is known what they are: the first step of every call.
#pragma once

#include <ATen/core/ivalue.h>
#include <c10/util/SmallVector.h>

#include "operator/operator.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// A tensor among the arguments, in schema order; each element of a list is one.
struct Operand {
  std::size_t argument;
  int element;  // -1: the argument itself
  at::Tensor tensor;
  DTensorMeta* meta;                // null for a plain tensor
  const Layout* reduced = nullptr;  // of a pending one that was reduced before: the layout of that
};
using Operands = c10::SmallVector<Operand, 6>;

// The origin of a result: what its operands were made of, one after the other, and the operator. A plain
// tensor is one like any other.
inline std::uint64_t with_operand(std::uint64_t of_operands, const DTensorMeta* meta) {
  return combined(of_operands, meta != nullptr ? meta->origin.id : 1);
}
inline TensorOrigin origin_of_result(const OperatorInfo& info, std::uint64_t of_operands,
                                     std::size_t result) {
  return {combined(combined(of_operands, info.as_maker.id), result), info.as_maker.maker};
}

// Calls visit(tensor, argument, element) for the tensors that are given, in schema order.
template <typename Visit>
void visit_tensors(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments, const Visit& visit) {
  const auto visit_given = [&](const c10::IValue& value, std::size_t argument, int element) {
    if (value.isTensor() && value.toTensor().defined()) visit(value.toTensor(), argument, element);
  };
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    const c10::IValue& value = arguments[i];
    if (info.arguments[i].kind == ArgumentInfo::Kind::tensor) {
      visit_given(value, i, -1);
    } else if (info.arguments[i].kind == ArgumentInfo::Kind::tensor_list && value.isList()) {
      const auto items = value.toListRef();
      for (std::size_t element = 0; element < items.size(); ++element)
        visit_given(items[element], i, static_cast<int>(element));
    }
  }
}

}  // namespace meshtorch::internal
