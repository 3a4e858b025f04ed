// What becomes of a call of an operator on distributed tensors.
#include "operator/fate.h"

#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "operator/decomposition.h"
#include "operator/operator.h"
#include "operator/refusals.h"

namespace meshtorch::internal {
namespace {

// Lists that are written, and results of operators that no rule describes: the functional operator makes
// them. LibTorch's own composite code would give an out= tensor another size behind our back.
bool is_written_by_functional(const OperatorInfo& info) {
  if (!info.functional) return false;
  const bool is_by_hand =
      info.is_composite || decompositions().find(rule_name(info.functional->operator_name())) != nullptr;
  return std::ranges::any_of(info.arguments, [&](const ArgumentInfo& argument) {
    return argument.is_out && (is_by_hand || argument.kind == ArgumentInfo::Kind::tensor_list);
  });
}

}  // namespace

Fate fate_of(const OperatorInfo& info) {
  using Kind = Fate::Kind;
  if (const char* words = refusal_of(info.name)) return {.kind = Kind::refused, .refusal = words};
  const Decomposition* decomposition = decompositions().find(info.name);
  if (decomposition != nullptr && !info.is_composite)
    return {.kind = Kind::decomposition, .decomposition = decomposition};
  if (is_written_by_functional(info)) return {.kind = Kind::written};
  // With a rule it need not be taken apart.
  if (info.is_composite && info.rule == nullptr)
    return {.kind = Kind::composite, .decomposition = decomposition};
  if (info.rule == nullptr && info.op.hasTag(at::Tag::nondeterministic_seeded)) {
    if (info.find("generator")) return {.kind = Kind::drawn};
    if (info.writes) return {.kind = Kind::refused, .refusal = kDrawsForEachRank};
  }
  if (info.changes_shape) return {.kind = Kind::reshaped};
  return {.kind = Kind::rule};
}

std::string describe(const OperatorInfo& info) {
  switch (info.fate.kind) {
    case Fate::Kind::decomposition:
    case Fate::Kind::written:
    case Fate::Kind::drawn:
      return "by hand";
    case Fate::Kind::composite:
      return "decomposed";
    case Fate::Kind::refused:
      return "refused";
    case Fate::Kind::reshaped:
      return info.functional ? describe(operator_info(*info.functional)) : "refused";
    case Fate::Kind::rule:
      break;
  }
  return info.rule != nullptr ? "rule" : "replicated";
}

}  // namespace meshtorch::internal
