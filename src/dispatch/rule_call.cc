// A call with its rule bound to it.
#include "dispatch/rule_call.h"

#include <algorithm>
#include <stdexcept>

namespace meshtorch {

struct RuleCall::Place {
  const Choice& choice;
  const Shape& mesh;
  const Shape& coordinate;
};

std::unique_ptr<RuleCall> RuleCall::bind(const RuleEntry& rule, const OperatorInfo& info,
                                         const Operands& operands, c10::ArrayRef<c10::IValue> arguments) {
  std::unique_ptr<RuleCall> call(new RuleCall(info, operands, arguments, rule));
  std::vector<std::vector<Shape>> shapes;
  for (std::size_t i = 0; i < info.arguments.size(); ++i) {
    // Out arguments are no operands of the rule.
    if (info.arguments[i].kind == ArgumentInfo::Kind::other || info.arguments[i].is_out) continue;
    shapes.emplace_back();
    for (std::size_t o = 0; o < operands.size(); ++o) {
      if (operands[o].argument != i) continue;
      shapes.back().push_back(operands[o].tensor.sizes().vec());
      call->order_.push_back(o);
    }
  }
  try {
    call->bound_ =
        std::make_shared<const BoundRule>(meshtorch::bind(call->use_.rule, shapes, call->use_.hints));
  } catch (const std::invalid_argument&) {
    // Shapes that the rule does not know, or that are wrong: the operator itself will say.
    return nullptr;
  }
  return call;
}

bool RuleCall::is_shape_only(std::size_t rule_tensor) const {
  const std::string& argument = info_.arguments[operand(rule_tensor).argument].name;
  return std::find(use_.shape_only.begin(), use_.shape_only.end(), argument) != use_.shape_only.end();
}

bool RuleCall::suits_kernels(const Choice& choice, const Shape& mesh) const {
  if (!use_.needs_elements) return true;
  // The part of the last rank of each axis is the smallest.
  Shape last = mesh;
  for (std::int64_t& index : last) --index;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const Shape shape = operand(i).tensor.sizes().vec();
    const Shape smallest = local_shape(shape, choice.operands[i], mesh, last);
    if (std::find(smallest.begin(), smallest.end(), 0) != smallest.end()) return false;
  }
  return true;
}

std::optional<LocalChanges> RuleCall::local_changes(const Choice& choice, const Shape& mesh,
                                                    const Shape& coordinate) const {
  LocalChanges changes;
  const Place place{choice, mesh, coordinate};
  for (const LocalChange& change : use_.changes) {
    if (!apply(change, place, changes)) return std::nullopt;
  }
  return changes;
}

bool RuleCall::apply(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  switch (change.kind) {
    case LocalChange::Kind::result_sizes:
      return localize_sizes(change, place, changes);
    case LocalChange::Kind::factor_size:
      if (const auto part = part_of(change.factor, place)) {
        changes.replaced.emplace_back(call_.index(change.argument), part->size);
        return true;
      }
      return false;
    case LocalChange::Kind::mask_indices:
      return mask_indices(change, place, changes);
  }
  return false;
}

bool RuleCall::localize_sizes(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  const std::vector<std::int64_t> asked = call_.integers(change.argument);
  Shape global = bound_->result(0).shape;
  if (global.size() != asked.size()) return false;
  for (std::size_t dim = 0; dim < global.size(); ++dim) {
    if (global[dim] < 0) global[dim] = asked[dim];
  }
  changes.replaced.emplace_back(call_.index(change.argument),
                                local_shape(global, place.choice.results[0], place.mesh, place.coordinate));
  return true;
}

const Factor* RuleCall::factor_named(const std::string& name) const {
  for (const Factor& factor : bound_->factors) {
    if (factor.name == name) return &factor;
  }
  return nullptr;
}

// This rank's part of a factor, if it is one run of indices.
std::optional<Range> RuleCall::part_of(const std::string& name, const Place& place) const {
  const Factor* factor = factor_named(name);
  if (factor == nullptr || factor->sites.empty()) return std::nullopt;
  const Site& site = factor->sites[0];
  const auto held =
      held_ranges(factor->size, site.dim, place.choice.operands[static_cast<std::size_t>(site.tensor)],
                  place.mesh, place.coordinate);
  if (held.empty()) return Range{0, 0};
  return held.size() == 1 ? std::optional<Range>(held[0]) : std::nullopt;
}

bool RuleCall::mask_indices(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  const Factor* factor = factor_named(change.factor);
  if (factor == nullptr) return false;
  const Site& site = factor->sites.at(0);
  const Placements& placements = place.choice.operands[static_cast<std::size_t>(site.tensor)];
  const bool is_split = std::any_of(placements.begin(), placements.end(),
                                    [&](const Placement& p) { return p.is_shard(site.dim); });
  if (!is_split) return true;
  const auto part = part_of(change.factor, place);
  if (!part) return false;
  const std::size_t table = operand(static_cast<std::size_t>(site.tensor)).argument;
  changes.masks.push_back({call_.index(change.argument), table, site.dim, part->begin, part->size});
  return true;
}

}  // namespace meshtorch
