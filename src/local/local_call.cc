// The operator on the shards of one rank.
#include "local/local_call.h"

#include "local/index_mask.h"
#include "local/stand_in.h"

namespace meshtorch::internal {
namespace {

void replace_list(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<at::Tensor> locals,
                  std::size_t index, c10::IValue& list) {
  const std::size_t count = list.toListRef().size();
  c10::List<std::optional<at::Tensor>> optionals;
  std::vector<at::Tensor> tensors(count);
  optionals.resize(count);
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].argument != index) continue;
    const auto element = static_cast<std::size_t>(operands[i].element);
    optionals.set(element, locals[i]);
    tensors[element] = locals[i];
  }
  if (info.arguments[index].has_optional_elements) {
    list = std::move(optionals);
  } else {
    list = std::move(tensors);
  }
}

// A shard need not lie as the whole does: then its view is a copy.
void reshape(torch::jit::Stack& stack) {
  c10::SmallVector<std::int64_t, 8> sizes;
  for (const c10::IValue& size : stack.back().toListRef()) sizes.push_back(size.toInt());
  const at::Tensor local = stack[stack.size() - 2].toTensor();
  torch::jit::drop(stack, 2);
  stack.emplace_back(local.is_contiguous() ? local.view(sizes) : local.reshape(sizes));
}

}  // namespace

void replace_operands(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<at::Tensor> locals,
                      c10::IValue* arguments) {
  for (std::size_t i = 0; i < operands.size(); ++i) {
    if (operands[i].element < 0) arguments[operands[i].argument] = locals[i];
  }
  for (std::size_t i = 0; info.takes_lists && i < info.arguments.size(); ++i) {
    if (info.arguments[i].kind == ArgumentInfo::Kind::tensor_list && arguments[i].isList())
      replace_list(info, operands, locals, i, arguments[i]);
  }
}

std::vector<at::Tensor> change_arguments(const LocalChanges& changes, c10::IValue* arguments) {
  for (const auto& [index, value] : changes.replaced) arguments[index] = value;
  if (changes.stand_in) lengthen_arguments(*changes.stand_in, arguments);
  std::vector<at::Tensor> masked;
  for (const IndexMask& mask : changes.masks) {
    if (mask.is_written) {
      masked.push_back(arguments[mask.table].toTensor());
      add_row_for_elsewhere(mask, arguments[mask.table], arguments[mask.argument]);
    } else {
      masked.push_back(apply_mask(mask, arguments[mask.table], arguments[mask.argument]));
    }
  }
  return masked;
}

void run_local_call(const OperatorInfo& info, const LocalChanges& changes, torch::jit::Stack& stack) {
  const auto masked = change_arguments(changes, stack.data() + (stack.size() - info.arguments.size()));
  if (info.is_reshape) {
    reshape(stack);
  } else {
    info.op.callBoxed(&stack);
  }
  for (std::size_t i = 0; i < masked.size(); ++i) {
    const at::Tensor result = stack.back().toTensor();
    if (!changes.masks[i].is_written) {
      clear_rows(result, masked[i]);
    } else if (info.writes) {
      masked[i].copy_(without_row(changes.masks[i], result));
      stack.back() = masked[i];
    } else {
      stack.back() = without_row(changes.masks[i], result).contiguous();
    }
  }
  if (changes.stand_in)
    empty_results(*changes.stand_in, stack.data() + (stack.size() - info.returned_argument.size()),
                  info.returned_argument.size());
}

}  // namespace meshtorch::internal
