// Axis by axis: list the options, drop what cannot be, price the rest, narrow the call.
#include "propagate/choose.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>
#include <string>
#include <tuple>
#include <utility>

#include "propagate/narrowing.h"

namespace meshtorch::internal {
namespace {

struct OptionPrice {
  bool moves_kept = false;
  bool moves_split = false;   // what is split has to be sent
  double sent_s = 0;          // what is sent now, and later for the results
  bool communicates = false;  // something is sent now
  double local_s = 0;
  int changed = 0;

  double seconds() const { return sent_s + local_s; }
  // Sums of the same times in another order are equal.
  std::int64_t picoseconds() const { return std::llround(sent_s * 1e12); }

  friend bool operator<(const OptionPrice& a, const OptionPrice& b) {
    const auto rank = [](const OptionPrice& p) {
      return std::tuple(p.moves_kept, p.moves_split, p.picoseconds(), p.communicates, p.local_s, p.changed);
    };
    return rank(a) < rank(b);
  }
};

// Settles one element of a paired rule, or the whole of any other.
class Chooser {
 public:
  Chooser(const BoundRule& bound, const Situation& situation) : situation_(situation), rest_(bound) {
    choice_.operands.resize(bound.operand_count);
    choice_.results.resize(bound.result_count());
  }

  std::optional<Choice> run(std::vector<std::vector<PricedOption>>* considered) {
    for (std::size_t axis = 0; axis < situation_.mesh.size(); ++axis) {
      const std::vector<Option> candidates = candidates_on(axis);
      std::vector<OptionPrice> prices;
      for (const Option& option : candidates) prices.push_back(price_of(option, axis));
      const auto best = std::min_element(prices.begin(), prices.end());
      if (best == prices.end()) return std::nullopt;
      const auto chosen = static_cast<std::size_t>(best - prices.begin());
      apply(candidates[chosen], axis);
      choice_.cost += best->seconds();
      if (considered == nullptr) continue;
      std::vector<PricedOption>& here = considered->emplace_back();
      for (std::size_t i = 0; i < candidates.size(); ++i)
        here.push_back({candidates[i], prices[i].communicates, prices[i].seconds(), i == chosen});
    }
    return std::move(choice_);
  }

 private:
  const BoundRule& bound() const { return rest_.largest(); }

  std::vector<Option> candidates_on(std::size_t axis) const {
    std::vector<Option> list = options(bound(), situation_.contracted);
    const std::size_t plain = list.size();
    for (std::size_t i = 0; i < plain; ++i) {
      if (auto strided = kept_strided(list[i], axis)) list.push_back(*std::move(strided));
    }
    std::erase_if(list, [&](const Option& option) {
      return !is_allowed(option, axis) || !rest_.is_feasible(option, situation_.mesh[axis]);
    });
    return list;
  }

  // The option with strided shards, where every operand that holds the factor has the same one
  // already: all then hold the same indices in the same order.
  std::optional<Option> kept_strided(Option option, std::size_t axis) const {
    if (option.factor < 0) return std::nullopt;
    std::int64_t pieces = 0;
    for (const Site& site : bound().factors[option.factor].sites) {
      if (site.slot != 0) return std::nullopt;
      if (site.tensor < bound().operand_count) {
        const Placement& now = situation_.operands[site.tensor][axis];
        const bool strided = now.kind() == Placement::Kind::strided_shard && now.is_shard(site.dim);
        if (!strided || (pieces != 0 && pieces != now.split_factor())) return std::nullopt;
        pieces = now.split_factor();
      }
    }
    for (const Site& site : bound().factors[option.factor].sites) {
      const int result = site.tensor - bound().operand_count;
      (result < 0 ? option.operands[site.tensor] : option.results[result]) = StridedShard(site.dim, pieces);
    }
    option.why += " (strided)";
    return option;
  }

  bool is_allowed(const Option& option, std::size_t axis) const {
    for (std::size_t t = 0; t < option.operands.size() && !situation_.pinned.empty(); ++t) {
      if (situation_.pinned[t] && option.operands[t] != situation_.operands[t][axis]) return false;
    }
    for (std::size_t r = 0; r < option.results.size() && !situation_.wanted_results.empty(); ++r) {
      const auto& wanted = situation_.wanted_results[r];
      if (wanted && option.results[r] != (*wanted)[axis]) return false;
    }
    return true;
  }

  OptionPrice price_of(const Option& option, std::size_t axis) const {
    OptionPrice price;
    for (int t = 0; t < bound().operand_count; ++t) {
      const MoveCost move = operand_cost(t, option.operands[t], axis);
      price.communicates |= move.communicates;
      price.moves_split |= move.communicates && !situation_.operands[t][axis].is_partial();
      (move.communicates ? price.sent_s : price.local_s) += move.seconds;
      if (!is_moved(t, option, axis)) continue;
      ++price.changed;
      price.moves_kept |= is_kept(t) && situation_.operands[t][axis].is_shard();
    }
    for (int r = 0; r < bound().result_count(); ++r) price.sent_s += later_cost(option, r, axis);
    return price;
  }

  bool is_moved(int t, const Option& option, std::size_t axis) const {
    return option.operands[t] != situation_.operands[t][axis];
  }
  bool is_kept(int t) const { return !situation_.kept.empty() && situation_.kept[t]; }

  // A pending result will be reduced. A split one is taken to be moved back where the largest split operand
  // was moved although its split could have stayed; where all that was split or pending was moved, it is
  // taken to be gathered: always if something was pending, since a program that splits nothing else wants it
  // whole, else with an even chance.
  double later_cost(const Option& option, int r, std::size_t axis) const {
    const std::int64_t extent = situation_.mesh[axis];
    const AxisTensor result = axis_tensor(bound().operand_count + r);
    const Placement& lies = option.results[r];
    if (lies.is_partial()) return move_cost(lies, Replicate(), result, extent, axis_cost(axis)).seconds;
    // Of a result whose options are listed the shape is not known yet.
    if (!lies.is_shard() || static_cast<std::size_t>(lies.dim()) >= result.shape.size()) return 0;
    if (moves_largest_split(option, axis, r))
      return reorder_cost(lies, result, extent, axis_cost(axis)).seconds;
    double chance = 0;
    for (int t = 0; t < bound().operand_count; ++t) {
      const Placement& now = situation_.operands[t][axis];
      if (now.is_shard() && !is_moved(t, option, axis)) return 0;
      if (!now.is_replicate() && is_moved(t, option, axis))
        chance = std::max(chance, now.is_partial() ? 1.0 : 0.5);
    }
    return chance * move_cost(lies, Replicate(), result, extent, axis_cost(axis)).seconds;
  }

  // Whether the result has the dim along which an operand is split.
  bool is_split_dim_in(int t, std::size_t axis, int r) const {
    const std::int64_t dim = situation_.operands[t][axis].dim();
    return std::any_of(bound().factors.begin(), bound().factors.end(), [&](const Factor& factor) {
      const auto has = [&](int tensor, std::int64_t at) {
        return std::any_of(factor.sites.begin(), factor.sites.end(), [&](const Site& site) {
          return site.tensor == tensor && (at < 0 || site.dim == at);
        });
      };
      return has(t, dim) && has(bound().operand_count + r, -1);
    });
  }

  // Whether of the operands that are split on the axis the one with most bytes is moved although the result
  // has its dim; of several such, whether all are.
  bool moves_largest_split(const Option& option, std::size_t axis, int r) const {
    double largest = -1;
    bool is_moved_back = false;
    for (int t = 0; t < bound().operand_count; ++t) {
      if (!situation_.operands[t][axis].is_shard() || axis_tensor(t).bytes() < largest) continue;
      const bool is_one = is_moved(t, option, axis) && is_split_dim_in(t, axis, r);
      is_moved_back = axis_tensor(t).bytes() > largest ? is_one : is_moved_back && is_one;
      largest = axis_tensor(t).bytes();
    }
    return is_moved_back;
  }

  MoveCost operand_cost(int t, const Placement& to, std::size_t axis) const {
    const Placement& from = situation_.operands[t][axis];
    const std::int64_t extent = situation_.mesh[axis];
    const MoveCost move = move_cost(from, to, axis_tensor(t), extent, axis_cost(axis));
    if (!is_reordered(t, to, axis)) return move;
    return move + reorder_cost(to, axis_tensor(t), extent, axis_cost(axis));
  }

  // Nested splits of a dim apply from left to right. Splitting on one axis what an axis to its
  // right has split already, or joining on an earlier axis what this one goes on splitting, looks
  // local but moves data.
  bool is_reordered(int t, const Placement& to, std::size_t axis) const {
    if (!to.is_shard()) return false;
    const Placements& now = situation_.operands[t];
    const auto is_split_by = [&](std::size_t other) {  // an axis of one rank splits nothing
      return now[other].is_shard(to.dim()) && situation_.mesh[other] > 1;
    };
    if (now[axis].is_replicate()) {
      for (std::size_t right = axis + 1; right < now.size(); ++right) {
        if (is_split_by(right)) return true;
      }
      return false;
    }
    if (now[axis] != to) return false;
    for (std::size_t left = 0; left < axis; ++left) {
      if (is_split_by(left) && now[left] != choice_.operands[t][left]) return true;
    }
    return false;
  }

  AxisTensor axis_tensor(int t) const {
    AxisTensor tensor{.shape = bound().tensors[t].shape};
    if (!situation_.item_sizes.empty()) tensor.item_size = situation_.item_sizes[t];
    // Sizes that only the local result tells count as one: the estimate of a result is a floor.
    std::replace(tensor.shape.begin(), tensor.shape.end(), std::int64_t{-1}, std::int64_t{1});
    return tensor;
  }

  AxisCost axis_cost(std::size_t axis) const {
    return situation_.axis_costs.empty() ? AxisCost{} : situation_.axis_costs[axis];
  }

  void apply(const Option& option, std::size_t axis) {
    for (std::size_t t = 0; t < option.operands.size(); ++t) {
      choice_.operands[t].push_back(option.operands[t]);
    }
    for (std::size_t r = 0; r < option.results.size(); ++r) {
      choice_.results[r].push_back(option.results[r]);
    }
    choice_.options.push_back(option);
    rest_.apply(option, situation_.mesh[axis]);
  }

  const Situation& situation_;
  Narrowing rest_;
  Choice choice_;
};

void check(const BoundRule& bound, const Situation& s) {
  const std::size_t operands = static_cast<std::size_t>(bound.operand_count);
  const std::size_t axes = s.mesh.size();
  const auto fits = [](std::size_t size, std::size_t expected) { return size == 0 || size == expected; };
  const bool lengths = s.operands.size() == operands && fits(s.axis_costs.size(), axes) &&
                       fits(s.item_sizes.size(), bound.tensors.size()) && fits(s.pinned.size(), operands) &&
                       fits(s.kept.size(), operands) &&
                       fits(s.wanted_results.size(), bound.tensors.size() - operands);
  const bool placements =
      std::all_of(s.operands.begin(), s.operands.end(),
                  [&](const Placements& p) { return p.size() == axes; }) &&
      std::all_of(s.wanted_results.begin(), s.wanted_results.end(),
                  [&](const std::optional<Placements>& p) { return !p || p->size() == axes; });
  if (lengths && placements) return;
  throw std::invalid_argument("meshtorch: a situation that does not fit its rule\n  " +
                              std::to_string(operands) + " operand tensors and " + std::to_string(axes) +
                              " mesh axes, in the rule `" + std::string(bound.rule) +
                              "`\n  do: give one entry for each tensor and each axis");
}

// The part of a situation that concerns one element. What earlier elements have settled is in
// `settled`.
Situation situation_of(const BoundElement& element, int operand_count, const Situation& all,
                       const Choice& settled) {
  Situation s;
  s.mesh = all.mesh;
  s.axis_costs = all.axis_costs;
  s.contracted = all.contracted;
  for (const int t : element.tensors) {
    if (!all.item_sizes.empty()) s.item_sizes.push_back(all.item_sizes[t]);
    if (t >= operand_count) {
      if (all.wanted_results.empty()) continue;
      s.wanted_results.push_back(all.wanted_results[t - operand_count]);
      continue;
    }
    s.operands.push_back(settled.operands[t]);
    if (!all.pinned.empty()) s.pinned.push_back(all.pinned[t]);
    if (!all.kept.empty()) s.kept.push_back(all.kept[t]);
  }
  return s;
}

std::optional<Choice> choose_by_element(const BoundRule& bound, const Situation& situation,
                                        std::vector<std::vector<PricedOption>>* considered) {
  Choice choice;
  choice.operands = situation.operands;
  choice.results.resize(bound.result_count(), Placements(situation.mesh.size()));
  for (const BoundElement& element : elements(bound)) {
    const Situation part = situation_of(element, bound.operand_count, situation, choice);
    const std::optional<Choice> settled = Chooser(element.rule, part).run(considered);
    if (!settled) return std::nullopt;
    merge(choice, *settled, element, bound.operand_count);
  }
  for (std::size_t axis = 0; axis < situation.mesh.size(); ++axis) {
    Option option;
    option.why = "element by element";
    for (const Placements& p : choice.operands) option.operands.push_back(p[axis]);
    for (const Placements& p : choice.results) option.results.push_back(p[axis]);
    choice.options.push_back(std::move(option));
  }
  return choice;
}

}  // namespace

void merge(Choice& into, const Choice& part, const BoundElement& element, int operand_count) {
  for (std::size_t i = 0; i < element.tensors.size(); ++i) {
    const int t = element.tensors[i];
    if (t < operand_count) {
      into.operands[t] = part.operands[i];
    } else {
      into.results[t - operand_count] = part.results[i - part.operands.size()];
    }
  }
  into.cost += part.cost;
}

std::optional<Choice> choose(const BoundRule& bound, const Situation& situation,
                             std::vector<std::vector<PricedOption>>* considered) {
  check(bound, situation);
  return bound.paired ? choose_by_element(bound, situation, considered)
                      : Chooser(bound, situation).run(considered);
}

}  // namespace meshtorch::internal
