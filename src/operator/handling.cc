// How an operator runs on distributed tensors.
#include "operator/handling.h"

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

Handling handling_of(const OperatorInfo& info) {
  using Kind = Handling::Kind;
  if (const char* words = refusal_of(info.name)) return {.kind = Kind::rejected, .refusal = words};
  const Decomposition* decomposition = decompositions().find(info.name);
  if (decomposition != nullptr && !info.is_composite)
    return {.kind = Kind::decomposition, .decomposition = decomposition};
  if (is_written_by_functional(info)) return {.kind = Kind::via_functional};
  // With a rule it need not be taken apart.
  if (info.is_composite && info.rule == nullptr)
    return {.kind = Kind::composite, .decomposition = decomposition};
  if (info.rule == nullptr && info.op.hasTag(at::Tag::nondeterministic_seeded)) {
    if (info.find("generator")) return {.kind = Kind::replicated_random};
    if (info.writes) return {.kind = Kind::rejected, .refusal = kDrawsForEachRank};
  }
  if (info.changes_shape) return {.kind = Kind::inplace_reshape};
  return {.kind = Kind::rule};
}

std::string describe(const OperatorInfo& info) {
  switch (info.handling.kind) {
    case Handling::Kind::decomposition:
    case Handling::Kind::via_functional:
    case Handling::Kind::replicated_random:
      return "by hand";
    case Handling::Kind::composite:
      return "decomposed";
    case Handling::Kind::rejected:
      return "refused";
    case Handling::Kind::inplace_reshape:
      return info.functional ? describe(operator_info(*info.functional)) : "refused";
    case Handling::Kind::rule:
      break;
  }
  return info.rule != nullptr ? "rule" : "replicated";
}

}  // namespace meshtorch::internal
