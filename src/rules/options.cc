// Options for one mesh axis, from the factors and marks of a bound rule.
#include "rules/options.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <utility>

namespace meshtorch::internal {
namespace {

Option replicate(const BoundRule& bound) {
  Option option;
  option.operands.resize(bound.operand_count);
  option.results.resize(bound.result_count());
  option.why = "replicate";
  return option;
}

Placement& placement_of(Option& option, const BoundRule& bound, int tensor) {
  return tensor < bound.operand_count ? option.operands[tensor]
                                      : option.results[tensor - bound.operand_count];
}

const Placement& placement_of(const Option& option, const BoundRule& bound, int tensor) {
  return tensor < bound.operand_count ? option.operands[tensor]
                                      : option.results[tensor - bound.operand_count];
}

// An inner part of a compound has no contiguous chunks; a factor that no operand holds could be
// split only by telling the local call to make less.
bool is_splittable(const Factor& factor, const BoundRule& bound) {
  const auto& sites = factor.sites;
  return !factor.whole && std::all_of(sites.begin(), sites.end(), [&](const Site& s) {
    return s.slot == 0 || bound.splits_inner;
  }) && std::any_of(sites.begin(), sites.end(), [&](const Site& s) {
    return s.tensor < bound.operand_count;
  });
}

// How a tensor lies in which the factor of this site is split: of an inner part, one chunk in each of the
// outer ones.
Placement split_at(const Site& site) {
  return site.outer == 1 ? Shard(site.dim) : StridedShard(site.dim, site.outer);
}

bool in_a_result(const Factor& factor, const BoundRule& bound) {
  return std::any_of(factor.sites.begin(), factor.sites.end(),
                     [&](const Site& s) { return s.tensor >= bound.operand_count; });
}

bool has_mark(const BoundRule& bound, char mark) {
  return std::any_of(bound.tensors.begin(), bound.tensors.begin() + bound.operand_count,
                     [&](const BoundTensor& t) { return t.mark == mark; });
}

void add_split(std::vector<Option>& list, const BoundRule& bound, int index, ReduceOp contracted) {
  const Factor& factor = bound.factors[index];
  if (!is_splittable(factor, bound)) return;
  const bool is_contracted = !in_a_result(factor, bound);
  // A term is added to every part: only a sum of parts can take a share of the term from each.
  const bool shares_terms = is_contracted && has_mark(bound, '+');
  if (shares_terms && contracted != ReduceOp::sum) return;

  Option option = replicate(bound);
  option.factor = index;
  option.why = "split " + factor.name + (is_contracted ? " (contracted)" : "");
  // A '+' result is a sum over each name it lacks; where no result has the name, all lack it.
  for (Placement& p : option.results) p = Partial(is_contracted ? contracted : ReduceOp::sum);
  for (int t = 0; shares_terms && t < bound.operand_count; ++t) {
    if (bound.tensors[t].mark == '+') option.operands[t] = Partial();
  }
  for (const Site& site : factor.sites) placement_of(option, bound, site.tensor) = split_at(site);
  list.push_back(std::move(option));
}

// All '+' terms are pending, and the '*' factor `star`, if any.
void add_linear(std::vector<Option>& list, const BoundRule& bound, int star, ReduceOp op) {
  Option option = replicate(bound);
  option.why = "linear";
  for (int t = 0; t < bound.operand_count; ++t) {
    if (bound.tensors[t].mark == '+' || t == star) option.operands[t] = Partial(op);
  }
  std::fill(option.results.begin(), option.results.end(), Partial(op));
  list.push_back(std::move(option));
}

// True if an operand would be pending whose terms add up to something else after the call.
bool leaves_terms(const Option& option, const BoundRule& bound) {
  for (int t = 0; t < bound.operand_count; ++t) {
    const Placement& p = option.operands[t];
    const bool is_in_terms = p.is_partial(ReduceOp::sum) || p.is_partial(ReduceOp::product);
    if (bound.tensors[t].adds_up_first && is_in_terms) return true;
  }
  return false;
}

void add_kept(std::vector<Option>& list, const BoundRule& bound, const KeptReduction& kept) {
  Option option = replicate(bound);
  option.why = std::string("keeps ").append(to_string(kept.of));
  for (int t = 0; t < bound.operand_count; ++t) {
    if (kept.operand < 0 || bound.tensors[t].argument == kept.operand) option.operands[t] = Partial(kept.of);
  }
  std::fill(option.results.begin(), option.results.end(), Partial(kept.as));
  list.push_back(std::move(option));
}

// The size of part `index` of a factor under its own placement, plain or strided.
std::int64_t part_size(const Factor& factor, const Option& option, const BoundRule& bound,
                       std::int64_t extent, std::int64_t index) {
  // Where it is an inner part, the strides are those of the compound, not its own.
  const auto outermost = std::ranges::find(factor.sites, 0, &Site::slot);
  if (outermost == factor.sites.end()) return chunk(factor.size, extent, index).size;
  const Placement& p = placement_of(option, bound, outermost->tensor);
  std::int64_t size = 0;
  for (const Range& r : split({{0, factor.size}}, p, extent, index)) size += r.size;
  return size;
}

// Whether the parts of a compound are those of its outermost factor, each with all that lies inside.
bool parts_agree(const Factor& factor, const Placement& p, std::int64_t inner, std::int64_t extent) {
  for (std::int64_t i = 0; i < extent; ++i) {
    std::vector<Range> outer = split({{0, factor.size}}, p, extent, i);
    for (Range& r : outer) r = {r.begin * inner, r.size * inner};
    if (split({{0, factor.size * inner}}, p, extent, i) != outer) return false;
  }
  return true;
}

// The other parts of a compound have fewer indices inside or outside of them when one is narrowed.
void update_neighbours(BoundRule& rest, const Site& narrowed_site, std::int64_t from, std::int64_t to) {
  if (from == 0) return;
  for (Factor& factor : rest.factors) {
    for (Site& site : factor.sites) {
      if (site.tensor != narrowed_site.tensor || site.dim != narrowed_site.dim) continue;
      if (site.slot < narrowed_site.slot) site.inner = site.inner / from * to;
      if (site.slot > narrowed_site.slot) site.outer = site.outer / from * to;
    }
  }
}

}  // namespace

std::vector<BoundElement> elements(const BoundRule& bound) {
  if (!bound.paired) {
    std::vector<int> all(bound.tensors.size());
    std::iota(all.begin(), all.end(), 0);
    return {{bound, all}};
  }
  int count = 0;
  for (const BoundTensor& tensor : bound.tensors) count = std::max(count, tensor.element + 1);
  std::vector<BoundElement> parts;
  for (int e = 0; e < count; ++e) {
    BoundElement part;
    part.rule.rule = bound.rule;
    part.rule.paired = true;
    part.rule.kept = bound.kept;
    part.rule.listed = bound.listed;
    part.rule.splits_inner = bound.splits_inner;
    std::map<int, int> place;
    for (int t = 0; t < static_cast<int>(bound.tensors.size()); ++t) {
      if (bound.tensors[t].element >= 0 && bound.tensors[t].element != e) continue;
      place[t] = static_cast<int>(part.tensors.size());
      part.tensors.push_back(t);
      part.rule.tensors.push_back(bound.tensors[t]);
      if (t < bound.operand_count) ++part.rule.operand_count;
    }
    for (Factor factor : bound.factors) {
      if (factor.element != e) continue;
      for (Site& site : factor.sites) site.tensor = place.at(site.tensor);
      part.rule.factors.push_back(std::move(factor));
    }
    parts.push_back(std::move(part));
  }
  return parts;
}

std::string Option::to_string() const {
  std::string text;
  for (const Placement& p : operands) text.append(p.to_string()).append(" ");
  text += "->";
  for (const Placement& p : results) text.append(" ").append(p.to_string());
  return text + ": " + why;
}

std::vector<Option> options(const BoundRule& bound, ReduceOp contracted) {
  std::vector<Option> list{replicate(bound)};
  if (!bound.listed.empty()) {
    for (const ListedOption& listed : bound.listed)
      list.push_back({.operands = listed.operands, .results = listed.results, .factor = -1, .why = "listed"});
    return list;
  }
  for (int f = 0; f < static_cast<int>(bound.factors.size()); ++f) {
    add_split(list, bound, f, contracted);
  }
  // An average is linear too: a replicated operand is the average of its copies.
  for (const ReduceOp op : {ReduceOp::sum, ReduceOp::avg}) {
    for (int t = 0; t < bound.operand_count; ++t) {
      if (bound.tensors[t].mark == '*') add_linear(list, bound, t, op);
    }
    if (!has_mark(bound, '*') && has_mark(bound, '+')) add_linear(list, bound, -1, op);
  }
  for (const KeptReduction& kept : bound.kept) add_kept(list, bound, kept);
  std::erase_if(list, [&](const Option& option) { return leaves_terms(option, bound); });
  if (bound.paired) {
    // Elements are settled one by one, so what they share must suit them all.
    std::erase_if(list, [&](const Option& option) {
      for (int t = 0; t < bound.operand_count; ++t) {
        if (bound.tensors[t].element < 0 && !option.operands[t].is_replicate()) return true;
      }
      return false;
    });
  }
  return list;
}

bool feasible(const Option& option, const BoundRule& bound, std::int64_t extent) {
  if (option.factor < 0 || extent == 1) return true;
  const Factor& factor = bound.factors[option.factor];
  for (const Site& site : factor.sites) {
    const Placement& p = placement_of(option, bound, site.tensor);
    if (site.slot > 0 && p != split_at(site)) return false;
    const Placement own = site.slot > 0 ? Shard(site.dim) : p;
    if (site.inner != 1 && !parts_agree(factor, own, site.inner, extent)) return false;
  }
  const std::int64_t largest = part_size(factor, option, bound, extent, 0);
  const std::int64_t smallest = part_size(factor, option, bound, extent, extent - 1);
  return std::all_of(option.results.begin(), option.results.end(), [&](const Placement& p) {
    if (p.is_partial(ReduceOp::avg)) return smallest == largest;
    if (p.is_partial(ReduceOp::min) || p.is_partial(ReduceOp::max)) return smallest > 0;
    return true;
  });
}

BoundRule narrowed(const BoundRule& bound, const Option& option, std::int64_t extent, std::int64_t index) {
  BoundRule rest = bound;
  if (option.factor < 0) return rest;
  Factor& factor = rest.factors[option.factor];
  factor.size = part_size(factor, option, bound, extent, index);
  for (const Site& site : factor.sites) {
    rest.tensors[site.tensor].shape[site.dim] = site.outer * factor.size * site.inner;
    update_neighbours(rest, site, bound.factors[option.factor].size, factor.size);
  }
  return rest;
}

}  // namespace meshtorch::internal
