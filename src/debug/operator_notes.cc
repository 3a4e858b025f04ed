// The operators that ran while a debug mode noted them.
#include "debug/operator_notes.h"

#include <ATen/core/dispatch/Dispatcher.h>

#include <algorithm>
#include <array>
#include <optional>

#include "operator/operator.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

bool is_collective(std::string_view name) {
  return name.starts_with("c10d::") || name.starts_with("_c10d_functional::");
}

// It gives tensors as they are, as views, without their graph or in another type, or memory that nobody
// wrote.
bool computes_nothing(const c10::OperatorHandle& op) {
  const std::string_view name = op.schema().name();
  constexpr std::array<std::string_view, 3> kNames{"aten::detach", "aten::_to_copy", "aten::_unsafe_view"};
  if (std::ranges::find(kNames, name) != kNames.end()) return true;
  if (name.starts_with("aten::empty") || name.starts_with("aten::new_empty")) return true;
  return gives_views(op.schema());
}

enum class Kind : std::uint8_t { unnoted, trivial, computes };

Kind kind_of(const c10::OperatorName& name) {
  thread_local std::unordered_map<c10::OperatorName, Kind> known;
  if (const auto found = known.find(name); found != known.end()) return found->second;
  const auto op = c10::Dispatcher::singleton().findSchema(name);
  const bool is_noted = op && !is_collective(name.name) &&
                        !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  const Kind kind = !is_noted ? Kind::unnoted : computes_nothing(*op) ? Kind::trivial : Kind::computes;
  known.emplace(name, kind);
  return kind;
}

struct OperandText {
  std::string text;
  bool is_distributed = false;
  bool is_shape = false;

  void add(const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    const DTensorMeta* meta = meta_of(tensor);
    is_shape |= meta == nullptr && tensor.is_meta();
    is_distributed |= meta != nullptr;
    append(c10::str(tensor.sizes(), meta != nullptr ? " " + to_string(meta->layout->placements) : ""));
  }
  void add(const std::vector<at::Tensor>& list) {
    is_distributed |=
        std::ranges::any_of(list, [](const at::Tensor& t) { return t.defined() && meta_of(t) != nullptr; });
    append(c10::str(list.size(), list.size() == 1 ? " tensor" : " tensors"));
  }

 private:
  void append(const std::string& words) { text += (text.empty() ? "" : ", ") + words; }
};

OperandText operands_of(c10::ArrayRef<const c10::IValue> inputs) {
  OperandText operands;
  for (const c10::IValue& value : inputs) {
    if (value.isTensor()) operands.add(value.toTensor());
    if (value.isTensorList()) operands.add(value.toTensorVector());
  }
  return operands;
}

}  // namespace

std::optional<OperatorCall> operator_call(const at::RecordFunction& call) {
  const std::optional<c10::OperatorName> name = call.operator_name();
  const Kind kind = name ? kind_of(*name) : Kind::unnoted;
  if (kind == Kind::unnoted) return std::nullopt;
  const OperandText operands = operands_of(call.inputs());
  if (operands.is_shape) return std::nullopt;
  const TableDetail computed = operands.is_distributed ? TableDetail::distributed : TableDetail::operators;
  return OperatorCall{.name = c10::toString(*name),
                      .operands = operands.text,
                      .detail = kind == Kind::trivial ? TableDetail::all : computed,
                      .is_distributed = operands.is_distributed};
}

void OperatorNotes::note(const OperatorCall& call, const RunningModules& running) {
  const std::string module = running.paths.empty() ? "" : running.paths.back();
  const std::string key = c10::str(module, '\n', running.is_backward, '\n', call.name, '\n', call.operands);
  const auto [place, is_new] = places_.try_emplace(key, notes_.size());
  if (is_new) notes_.push_back({module, running.is_backward, call, 0});
  ++notes_[place->second].calls;
}

}  // namespace meshtorch::internal
