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

// What the results of a call are made of: its operands, one after the other, and the operator. A plain tensor
// is one like any other. A copy has the origin of what it is a copy of: whether LibTorch copies a gradient
// depends on who else holds it, which may be one rank.
class OriginOfCall {
 public:
  explicit OriginOfCall(const OperatorInfo& info) : info_(info) {}
  void add(const DTensorMeta* meta, std::size_t argument) {
    const std::uint64_t id = meta != nullptr ? meta->origin.id : 1;
    if (meta != nullptr && meta->replica && !info_.arguments[argument].is_written) meta->replica->note_read();
    is_known_ = is_known_ && id != kUnknownOrigin;
    operands_ = combined(operands_, id);
    if (static_cast<int>(argument) == info_.copied_argument) copied_ = meta;
  }
  // Says of a result what it is made of; and, if it is the same tensor again, that it is the same replica.
  void mark(DTensorMeta& result, std::size_t index) const {
    if (copied_ == nullptr) {
      const std::uint64_t id = combined(combined(operands_, info_.as_maker.id), index);
      result.origin = {is_known_ ? id : kUnknownOrigin, info_.as_maker.maker};
      return;
    }
    result.origin = copied_->origin;
    if (info_.is_view) result.replica = copied_->replica;
  }

 private:
  const OperatorInfo& info_;
  std::uint64_t operands_ = 0;
  bool is_known_ = true;
  const DTensorMeta* copied_ = nullptr;
};

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
