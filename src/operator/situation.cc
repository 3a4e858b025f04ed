// A bound call as the choice sees it.
#include "operator/situation.h"

#include <algorithm>

#include "operator/kept_layout.h"

namespace meshtorch::internal {
namespace {

// Operators that return nothing, as the in-place ones on lists do, write their results in order.
int written_argument(const OperatorInfo& info, std::size_t result) {
  std::size_t next = 0;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    if (info.arguments[i].is_written && next++ == result) return static_cast<int>(i);
  }
  return -1;
}

// The operand that result number `result` of the functional operator is written to, null if it is a new
// tensor.
const Operand* written_by(const OperatorInfo& info, const Operands& operands, std::size_t result,
                          int element) {
  const int argument = result < info.returned_argument.size() ? info.returned_argument[result]
                                                              : written_argument(info, result);
  for (const Operand& operand : operands) {
    if (static_cast<int>(operand.argument) == argument && operand.element == element) return &operand;
  }
  return nullptr;
}

bool holds_a_factor(const BoundRule& bound, int tensor) {
  return std::ranges::any_of(bound.factors, [&](const Factor& factor) {
    return std::ranges::any_of(factor.sites, [&](const Site& site) { return site.tensor == tensor; });
  });
}

}  // namespace

const Placements& placements_of(const Operand& operand, MeshImpl& mesh) {
  return operand.meta != nullptr ? operand.meta->layout->placements : mesh.replicated()->placements;
}

Situation situation_of(const BoundCall& call, const OperatorInfo& info, const Operands& operands,
                       MeshImpl& mesh) {
  const BoundRule& bound = *call.bound();
  Situation situation;
  situation.mesh = mesh.shape();
  situation.axis_costs = mesh.axis_costs();
  situation.contracted = call.use().contracted;
  std::int64_t item_size = 4;
  for (std::size_t i = 0; i < call.order().size(); ++i) {
    const Operand& operand = call.operand(i);
    Placements placements = placements_of(operand, mesh);
    // What is written stays as it lies.
    const bool is_written = info.arguments[operand.argument].is_written;
    if (call.is_shape_only(i) && !is_written) {
      const bool is_free = !holds_a_factor(bound, static_cast<int>(i));  // it may lie anyhow
      for (Placement& p : placements) {
        if (p.is_partial() || is_free) p = Replicate();
      }
    }
    situation.operands.push_back(std::move(placements));
    situation.kept.push_back(is_kept(operand));
    situation.pinned.push_back(is_written);
    item_size = std::max(item_size, static_cast<std::int64_t>(operand.tensor.element_size()));
  }
  situation.item_sizes.assign(bound.tensors.size(), item_size);
  // A result that is an argument lies as the argument does.
  for (int r = 0; r < bound.result_count(); ++r) {
    const BoundTensor& result = bound.result(r);
    const Operand* written =
        written_by(info, operands, static_cast<std::size_t>(result.argument), result.element);
    situation.wanted_results.push_back(written != nullptr ? std::optional(placements_of(*written, mesh))
                                                          : std::nullopt);
  }
  return situation;
}

}  // namespace meshtorch::internal
