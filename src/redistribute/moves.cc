// Moves: kinds by what changes on each axis, the order of reductions, prices.
#include "redistribute/moves.h"

#include <algorithm>
#include <bit>

namespace meshtorch::internal {
namespace {

constexpr double kLocalSecondsPerByte = 1e-10;
// On meshes of more axes only runs of neighbours move together, so that planning stays quick.
constexpr std::size_t kAnySubsetUpToAxes = 4;

// What can happen to the placement of one axis; bits, so that those of several axes add up.
enum Change : unsigned {
  kGather = 1,    // S -> R
  kExchange = 2,  // S -> another S
  kCut = 4,       // R -> S
  kSpread = 8,    // R -> P
  kReduce = 16,   // P -> R
  kScatter = 32,  // P -> S
  kImpossible = 64
};

unsigned change(const Placement& before, const Placement& after) {
  if (before.is_partial()) return after.is_partial() ? kImpossible : after.is_shard() ? kScatter : kReduce;
  if (after.is_partial()) return before.is_replicate() ? kSpread : kImpossible;
  if (before.is_shard()) return after.is_shard() ? kExchange : kGather;
  return kCut;
}

// The kind of move that makes all these changes at once.
std::optional<Step::Kind> kind_of(unsigned changes) {
  switch (changes) {
    case kGather:
      return Step::Kind::all_gather;
    case kExchange:
    case kExchange | kGather:
    case kExchange | kCut:
      return Step::Kind::all_to_all;
    case kCut:
      return Step::Kind::slice;
    case kSpread:
      return Step::Kind::to_partial;
    case kReduce:
      return Step::Kind::all_reduce;
    case kScatter:
      return Step::Kind::reduce_scatter;
    default:
      return std::nullopt;
  }
}

bool is_linear(ReduceOp op) { return op == ReduceOp::sum || op == ReduceOp::avg; }

// True if two nested reductions may be swapped.
bool commute(ReduceOp a, ReduceOp b) { return a == b || (is_linear(a) && is_linear(b)); }

// The axes of a move with their changes so far, grown axis by axis.
struct Growth {
  Move move;
  unsigned changes = 0;

  // False if the change on `axis` cannot be part of the same move.
  bool add(std::size_t axis, const Placement& before, const Placement& after) {
    if (before == after) return true;
    const unsigned what = change(before, after);
    if ((what & (kSpread | kReduce | kScatter)) != 0) {
      const ReduceOp op = before.is_partial() ? before.reduce_op() : after.reduce_op();
      const bool is_mixed = move.axes != 0 && op != move.op;
      if (is_mixed && (what == kSpread || !is_linear(op) || !is_linear(move.op))) return false;
      move.op = is_mixed ? ReduceOp::sum : op;
    }
    changes |= what;
    const std::optional<Step::Kind> kind = kind_of(changes);
    if (!kind) return false;
    move.kind = *kind;
    move.axes |= AxisSet{1} << axis;
    return true;
  }
};

bool may_group(AxisSet axes, std::size_t count) {
  if (count <= kAnySubsetUpToAxes) return true;
  while ((axes & 1U) == 0) axes >>= 1;
  return (axes & (axes + 1)) == 0;
}

void grow(const States& states, const State& before, std::size_t axis, State& after, const Growth& growth,
          const Moves::Visit& visit) {
  if (axis == states.axes()) {
    if (growth.move.axes != 0 && may_group(growth.move.axes, states.axes())) visit(after, growth.move);
    return;
  }
  for (char option : states.choices(axis)) {
    Growth next = growth;
    if (!next.add(axis, states.placement(before, axis), states.placement(option))) continue;
    after[axis] = option;
    grow(states, before, axis + 1, after, next, visit);
  }
  after[axis] = before[axis];
}

}  // namespace

Moves::Moves(const States& states, SearchStats& stats)
    : states_(states), stats_(stats), coverage_(states, stats) {
  const Problem& problem = states.problem();
  groups_.resize(std::size_t{1} << states.axes());
  for (AxisSet axes = 1; axes < groups_.size(); ++axes) {
    const auto axis = static_cast<std::size_t>(std::bit_width(axes) - 1);
    GroupCost group = groups_[axes & ~(AxisSet{1} << axis)];
    group.members *= problem.mesh[axis];
    group.worst.latency_s = std::max(group.worst.latency_s, problem.costs[axis].latency_s);
    group.worst.seconds_per_byte =
        std::max(group.worst.seconds_per_byte, problem.costs[axis].seconds_per_byte);
    groups_[axes] = group;
  }
}

void Moves::for_each(const State& before, const Visit& visit) const {
  State after = before;
  grow(states_, before, 0, after, {}, visit);
}

std::optional<Move> Moves::between(const State& before, const State& after) const {
  Growth growth;
  for (std::size_t axis = 0; axis < states_.axes(); ++axis) {
    if (!growth.add(axis, states_.placement(before, axis), states_.placement(after, axis)))
      return std::nullopt;
  }
  if (growth.move.axes == 0 || !may_group(growth.move.axes, states_.axes())) return std::nullopt;
  return growth.move;
}

bool Moves::allowed(const State& before, const State& after, const Move& move) {
  const bool reduces = move.kind == Step::Kind::all_reduce || move.kind == Step::Kind::reduce_scatter;
  // Filling with ones is undone by a product, but not if a later axis first adds the ones up.
  const bool fills_with_ones = move.kind == Step::Kind::to_partial && move.op == ReduceOp::product;
  bool is_later = false;
  for (std::size_t axis = 0; axis < states_.axes(); ++axis) {
    if (contains(move.axes, axis)) {
      is_later = true;
      continue;
    }
    const Placement& p = states_.placement(before, axis);
    if (!is_later || !p.is_partial()) continue;
    if (reduces && !commute(p.reduce_op(), move.op)) return false;
    if (fills_with_ones && (p.is_partial(ReduceOp::sum) || p.is_partial(ReduceOp::bxor))) return false;
  }
  return coverage_.holds(before, after, is_collective(move.kind) ? move.axes : 0);
}

std::optional<Move> Moves::widened(const State& before, const State& after, const Move& move,
                                   const LocalBytes& bytes) {
  const bool can_widen = move.kind == Step::Kind::all_gather || move.kind == Step::Kind::all_to_all ||
                         move.kind == Step::Kind::slice;
  if (!can_widen) return std::nullopt;
  AxisSet unchanged = 0;
  for (std::size_t axis = 0; axis < states_.axes(); ++axis) {
    const bool is_extra = !contains(move.axes, axis) && states_.placement(before, axis).is_shard();
    if (is_extra) unchanged |= AxisSet{1} << axis;
  }
  std::optional<Move> best;
  double best_seconds = 0;
  for (AxisSet extra = unchanged; extra != 0; extra = (extra - 1) & unchanged) {
    const Move wide{Step::Kind::all_to_all, move.axes | extra, move.op};
    if (!may_group(wide.axes, states_.axes())) continue;
    const double cost = price(after, wide, bytes).seconds;
    // The loop counts down; of equals the lowest set is kept.
    if ((best && cost > best_seconds) || !allowed(before, after, wide)) continue;
    best = wide;
    best_seconds = cost;
  }
  return best;
}

Price Moves::price(const State& after, const Move& move, const LocalBytes& bytes) const {
  ++stats_.moves;
  if (!is_collective(move.kind)) return {static_cast<double>(bytes.after) * kLocalSecondsPerByte, 0};
  const GroupCost& group = groups_[move.axes];
  const auto to_others = [&](std::int64_t all) { return all - all / group.members; };
  std::int64_t sent = 0;
  std::int64_t padded = 0;  // if every member moves as much as the largest: uneven shards make a
                            // collective wait for it
  switch (move.kind) {
    case Step::Kind::all_gather:
      sent = to_others(bytes.after);
      padded = (group.members - 1) * bytes.before;
      break;
    case Step::Kind::all_to_all:
      sent = to_others(copies(after, move.axes) * bytes.before);
      padded = to_others(bytes.after);
      break;
    case Step::Kind::all_reduce:
      sent = 2 * to_others(bytes.before);
      break;
    default:
      sent = to_others(bytes.before);
      padded = (group.members - 1) * bytes.after;
  }
  const auto slowest = static_cast<double>(std::max(sent, padded));
  return {group.worst.latency_s + slowest * group.worst.seconds_per_byte, sent};
}

std::int64_t Moves::copies(const State& after, AxisSet axes) const {
  std::int64_t count = 1;
  for (std::size_t axis = 0; axis < states_.axes(); ++axis) {
    if (contains(axes, axis) && states_.placement(after, axis).is_replicate())
      count *= states_.problem().mesh[axis];
  }
  return count;
}

}  // namespace meshtorch::internal
