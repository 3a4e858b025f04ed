// A call with its rule bound to it.
#include "operator/bound_call.h"

#include <algorithm>
#include <stdexcept>

namespace meshtorch::internal {

struct BoundCall::Place {
  const Choice& choice;
  const Shape& mesh;
  const Shape& coordinate;
};

std::unique_ptr<BoundCall> BoundCall::bind(const RuleEntry& rule, const OperatorInfo& info,
                                           const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                                           const std::vector<at::Tensor>& results) {
  std::unique_ptr<BoundCall> call(new BoundCall(info, operands, arguments, rule));
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
    BoundRule bound = internal::bind(call->use_.rule, shapes, call->use_.hints);
    bound.kept = call->use_.kept;
    bound.listed = call->use_.listed;
    for (const ListedOption& option : bound.listed)
      TORCH_INTERNAL_ASSERT(option.operands.size() == call->order_.size(), "an option of `", info.name,
                            "` lists ", option.operands.size(), " tensors, the call has ",
                            call->order_.size());
    bound.splits_inner = call->use_.splits_inner;
    call->leave_out_by_type(bound, results);
    call->bound_ = std::make_shared<const BoundRule>(std::move(bound));
  } catch (const std::invalid_argument&) {
    // Shapes that the rule does not know, or that are wrong: the operator itself will say.
    return nullptr;
  }
  return call;
}

namespace {

// A sum of bools is a disjunction, and one of narrow whole numbers wraps: in another type the terms add up to
// something else.
bool adds_up_in_its_type_only(at::ScalarType type) {
  return at::isIntegralType(type, /*includeBool=*/true) && type != at::kLong;
}

bool has_no_order(const at::Tensor& tensor) { return tensor.defined() && tensor.is_complex(); }

}  // namespace

// What cannot stay pending in the types of this call.
void BoundCall::leave_out_by_type(BoundRule& bound, const std::vector<at::Tensor>& results) const {
  const auto of_operands = [&](const auto& holds) {
    return [&](std::size_t o) { return holds(operands_[o].tensor); };
  };
  const auto is_float = [](const at::Tensor& t) { return t.is_floating_point(); };
  if (!std::ranges::all_of(order_, of_operands(is_float)))
    std::erase_if(bound.kept, [](const KeptReduction& kept) { return kept.of_floats; });
  if (std::ranges::any_of(order_, of_operands(has_no_order)) || std::ranges::any_of(results, has_no_order))
    std::erase_if(bound.kept, [](const KeptReduction& kept) { return kept.as != ReduceOp::sum; });
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const at::ScalarType type = operand(i).tensor.scalar_type();
    const auto has_type = [&](const at::Tensor& t) { return !t.defined() || t.scalar_type() == type; };
    const bool is_kept = results.empty() ? std::ranges::all_of(order_, of_operands(has_type))
                                         : std::ranges::all_of(results, has_type);
    bound.tensors[i].adds_up_first = !is_kept && adds_up_in_its_type_only(type);
  }
}

bool BoundCall::is_shape_only(std::size_t rule_tensor) const {
  const std::string& argument = info_.arguments[operand(rule_tensor).argument].name;
  return std::find(use_.shape_only.begin(), use_.shape_only.end(), argument) != use_.shape_only.end();
}

bool BoundCall::suits_kernels(const Choice& choice, const Shape& mesh) const {
  return !use_.needs_elements || !leaves_a_shard_empty(choice, mesh) || allows_stand_ins(choice);
}

bool BoundCall::leaves_a_shard_empty(const Choice& choice, const Shape& mesh) const {
  // The part of the last rank of each axis is the smallest.
  Shape last = mesh;
  for (std::int64_t& index : last) --index;
  for (std::size_t i = 0; i < order_.size(); ++i) {
    const Shape shape = operand(i).tensor.sizes().vec();
    const Shape smallest = local_shape(shape, choice.operands[i], mesh, last);
    if (std::find(smallest.begin(), smallest.end(), 0) != smallest.end()) return true;
  }
  return false;
}

// Zeros in, nothing out: right if the results are parts, or terms of sums to which nothing else adds.
bool BoundCall::allows_stand_ins(const Choice& choice) const {
  if (info_.writes || info_.takes_lists) return false;
  // A tensor without elements anywhere is the operator's own matter.
  for (const std::size_t o : order_) {
    if (operands_[o].tensor.numel() == 0) return false;
  }
  const auto& returns = info_.op.schema().returns();
  if (static_cast<int>(returns.size()) != bound_->result_count()) return false;
  const auto is_list = [](const c10::Argument& result) {
    return result.type()->kind() == c10::TypeKind::ListType;
  };
  if (std::any_of(returns.begin(), returns.end(), is_list)) return false;
  for (const LocalChange& change : use_.changes) {
    if (change.kind == LocalChange::Kind::mask_indices || change.kind == LocalChange::Kind::mask_writes)
      return false;
  }
  const auto is_pending = [](const Placements& placements) {
    return std::any_of(placements.begin(), placements.end(),
                       [](const Placement& p) { return p.is_partial(); });
  };
  const auto pends_no_sum = [](const Placements& placements) {
    return std::any_of(placements.begin(), placements.end(),
                       [](const Placement& p) { return p.is_partial() && !p.is_partial(ReduceOp::sum); });
  };
  return std::none_of(choice.results.begin(), choice.results.end(), pends_no_sum) &&
         std::none_of(choice.operands.begin(), choice.operands.end(), is_pending);
}

// How long a dim is locally for one index of what it is split by.
std::int64_t BoundCall::length_of_one(std::size_t tensor, std::size_t dim) const {
  for (const Factor& factor : bound_->factors) {
    for (const Site& site : factor.sites) {
      if (site.tensor == static_cast<int>(tensor) && site.dim == static_cast<int>(dim) && site.slot == 0)
        return site.inner;
    }
  }
  return 1;
}

std::optional<StandIn> BoundCall::stand_in_at(const Place& place) const {
  StandIn stand_in;
  const auto collect = [&](std::size_t tensor, const Placements& placements, std::vector<StandIn::Dim>& dims,
                           std::size_t number) {
    const Shape& shape = bound_->tensors[tensor].shape;
    const Shape local = local_shape(shape, placements, place.mesh, place.coordinate);
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      if (shape[dim] > 0 && local[dim] == 0)
        dims.push_back({number, static_cast<std::int64_t>(dim), length_of_one(tensor, dim)});
    }
  };
  for (std::size_t i = 0; i < order_.size(); ++i)
    collect(i, place.choice.operands[i], stand_in.arguments, operand(i).argument);
  if (stand_in.arguments.empty()) return std::nullopt;
  for (std::size_t r = 0; r < place.choice.results.size(); ++r)
    collect(order_.size() + r, place.choice.results[r], stand_in.results, r);
  return stand_in;
}

std::optional<LocalChanges> BoundCall::local_changes(const Choice& choice, const Shape& mesh,
                                                     const Shape& coordinate) const {
  LocalChanges changes;
  const Place place{choice, mesh, coordinate};
  if (use_.needs_elements && allows_stand_ins(choice)) changes.stand_in = stand_in_at(place);
  for (const LocalChange& change : use_.changes) {
    if (!apply(change, place, changes)) return std::nullopt;
  }
  return changes;
}

bool BoundCall::apply(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  switch (change.kind) {
    case LocalChange::Kind::result_sizes:
      return localize_sizes(change, place, changes);
    case LocalChange::Kind::factor_size:
      if (const auto part = part_of(change.factor, place)) {
        const std::int64_t least = changes.stand_in ? 1 : 0;
        changes.replaced.emplace_back(call_.index(change.argument), std::max(part->size, least));
        return true;
      }
      return false;
    case LocalChange::Kind::mask_indices:
    case LocalChange::Kind::mask_writes:
      return mask_indices(change, place, changes);
  }
  return false;
}

bool BoundCall::localize_sizes(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  const std::vector<std::int64_t> asked = call_.integers(change.argument);
  Shape global = bound_->result(0).shape;
  if (global.size() != asked.size()) return false;
  for (std::size_t dim = 0; dim < global.size(); ++dim) {
    if (global[dim] < 0) global[dim] = asked[dim];
  }
  Shape local = local_shape(global, place.choice.results[0], place.mesh, place.coordinate);
  for (std::size_t dim = 0; changes.stand_in && dim < local.size(); ++dim) {
    if (local[dim] == 0 && global[dim] > 0) local[dim] = length_of_one(order_.size(), dim);
  }
  changes.replaced.emplace_back(call_.index(change.argument), std::move(local));
  return true;
}

const Factor* BoundCall::factor_named(const std::string& name) const {
  for (const Factor& factor : bound_->factors) {
    if (factor.name == name) return &factor;
  }
  return nullptr;
}

// This rank's part of a factor, if it is one run of indices.
std::optional<Range> BoundCall::part_of(const std::string& name, const Place& place) const {
  const Factor* factor = factor_named(name);
  if (factor == nullptr || factor->sites.empty()) return std::nullopt;
  const Site& site = factor->sites[0];
  const Placements& placements = place.choice.operands[static_cast<std::size_t>(site.tensor)];
  // The same on every rank, also on those whose part happens to be one run.
  const bool is_strided = std::ranges::any_of(
      placements, [&](const Placement& p) { return p.is_shard(site.dim) && p.split_factor() > 1; });
  if (is_strided) return std::nullopt;
  const auto held = held_ranges(factor->size, site.dim, placements, place.mesh, place.coordinate);
  TORCH_INTERNAL_ASSERT(held.size() <= 1, "a part of ", name, " is not one run");
  return held.empty() ? Range{0, 0} : held[0];
}

bool BoundCall::mask_indices(const LocalChange& change, const Place& place, LocalChanges& changes) const {
  const Factor* factor = factor_named(change.factor);
  TORCH_INTERNAL_ASSERT(factor != nullptr, info_.op.operator_name(), " masks by \"", change.factor,
                        "\", which its rule does not name");
  const Site& site = factor->sites.at(0);
  const Placements& placements = place.choice.operands[static_cast<std::size_t>(site.tensor)];
  const bool is_split = std::any_of(placements.begin(), placements.end(),
                                    [&](const Placement& p) { return p.is_shard(site.dim); });
  if (!is_split) return true;
  const auto part = part_of(change.factor, place);
  if (!part) return false;
  const std::size_t table = operand(static_cast<std::size_t>(site.tensor)).argument;
  const bool is_written = change.kind == LocalChange::Kind::mask_writes;
  // An out= tensor has no room for what is dropped.
  if (is_written && info_.writes && !info_.arguments[table].is_written) return false;
  changes.masks.push_back(
      {call_.index(change.argument), table, site.dim, part->begin, part->size, factor->size, is_written});
  return true;
}

}  // namespace meshtorch::internal
