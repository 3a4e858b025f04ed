// Coverage: settled by the order of splits where that suffices, else by exact range arithmetic.
#include "redistribute/coverage.h"

#include <algorithm>

namespace meshtorch::internal {
namespace {

constexpr char kNotSplit = '\x7f';

// Sorts the ranges and joins those that touch.
void normalize(std::vector<Range>& ranges) {
  std::sort(ranges.begin(), ranges.end(), [](const Range& a, const Range& b) { return a.begin < b.begin; });
  std::size_t last = 0;
  for (std::size_t i = 1; i < ranges.size(); ++i) {
    if (ranges[i].begin <= ranges[last].end()) {
      ranges[last].size = std::max(ranges[last].end(), ranges[i].end()) - ranges[last].begin;
    } else {
      ranges[++last] = ranges[i];
    }
  }
  if (!ranges.empty()) ranges.resize(last + 1);
}

// True if every index of `inner` is in `outer`, both normalized.
bool within(const std::vector<Range>& inner, const std::vector<Range>& outer) {
  auto candidate = outer.begin();
  for (const Range& r : inner) {
    while (candidate != outer.end() && candidate->end() <= r.begin) ++candidate;
    if (candidate == outer.end() || candidate->begin > r.begin || candidate->end() < r.end()) return false;
  }
  return true;
}

// Moves to the next coordinate over `axes`; false after the last.
bool advance(Shape& coordinate, const std::vector<std::size_t>& axes, const Shape& mesh) {
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    if (++coordinate[*axis] < mesh[*axis]) return true;
    coordinate[*axis] = 0;
  }
  return false;
}

}  // namespace

bool Coverage::holds(const State& before, const State& after, AxisSet group) {
  std::uint64_t asked = 0;  // dims, one bit each
  for (std::size_t axis = 0; axis < before.size(); ++axis) {
    if (before[axis] == after[axis] && !contains(group, axis)) continue;
    for (const State* state : {&before, &after}) {
      const Placement& p = states_.placement(*state, axis);
      if (!p.is_shard()) continue;
      const std::uint64_t bit = std::uint64_t{1} << (p.dim() % 64);
      if ((asked & bit) == 0 && !holds_dim(p.dim(), before, after, group)) return false;
      asked |= bit;
    }
  }
  return true;
}

Coverage::Splits Coverage::splits(std::int64_t dim, const State& state, AxisSet group) const {
  Splits found;
  for (std::size_t axis = 0; axis < state.size(); ++axis) {
    const Placement& p = states_.placement(state, axis);
    if (p.is_shard(dim))
      found.items[found.size++] = {axis, states_.problem().mesh[axis], p, contains(group, axis)};
  }
  // The members of a group share out whatever the axes before them leave, so the last ones restrict
  // nothing.
  while (found.size > 0 && found.items[found.size - 1].in_group) --found.size;
  return found;
}

bool Coverage::holds_dim(std::int64_t dim, const State& before, const State& after, AxisSet group) {
  const Splits splits_before = splits(dim, before, group);
  const Splits splits_after = splits(dim, after, group);
  const auto same = [](const Split& b, const Split& a) {
    return b.in_group == a.in_group && b.extent == a.extent && (b.in_group || b.axis == a.axis) &&
           b.placement.split_factor() == a.placement.split_factor();
  };
  // Further splits only take away from what the group holds together.
  if (splits_before.size <= splits_after.size &&
      std::equal(splits_before.begin(), splits_before.end(), splits_after.begin(), same)) {
    return true;
  }
  std::string key{static_cast<char>(dim), static_cast<char>(group), static_cast<char>(group >> 8)};
  for (const State* state : {&before, &after}) {
    for (char option : *state) key.push_back(states_.placement(option).is_shard(dim) ? option : kNotSplit);
  }
  const auto [entry, is_new] = known_.try_emplace(std::move(key), false);
  if (is_new) {
    entry->second =
        holds_ranges(states_.problem().shape[static_cast<std::size_t>(dim)], splits_before, splits_after);
  }
  return entry->second;
}

bool Coverage::holds_ranges(std::int64_t size, const Splits& before, const Splits& after) {
  ++stats_.coverage_checks;
  std::vector<std::size_t> outside;  // the axes that tell groups apart
  for (const Splits* side : {&before, &after}) {
    for (const Split& split : *side) {
      const bool is_known = std::find(outside.begin(), outside.end(), split.axis) != outside.end();
      if (!split.in_group && !is_known) outside.push_back(split.axis);
    }
  }
  Shape coordinate(states_.axes(), 0);
  do {
    if (!within(reach(size, after, coordinate), reach(size, before, coordinate))) return false;
  } while (advance(coordinate, outside, states_.problem().mesh));
  return true;
}

std::vector<Range> Coverage::reach(std::int64_t size, const Splits& splits, const Shape& coordinate) {
  std::vector<Range> reached;
  add_reach(reached, {{0, size}}, splits, 0, coordinate);
  normalize(reached);
  return reached;
}

void Coverage::add_reach(std::vector<Range>& reached, std::vector<Range> held, const Splits& splits,
                         std::size_t next, const Shape& coordinate) {
  if (held.empty()) return;
  if (next == splits.size) {
    reached.insert(reached.end(), held.begin(), held.end());
    return;
  }
  const Split& s = splits.items[next];
  const std::int64_t begin = s.in_group ? 0 : coordinate[s.axis];
  const std::int64_t end = s.in_group ? s.extent : begin + 1;
  for (std::int64_t index = begin; index < end; ++index) {
    ++stats_.splits;
    add_reach(reached, split(held, s.placement, s.extent, index), splits, next + 1, coordinate);
  }
}

}  // namespace meshtorch::internal
