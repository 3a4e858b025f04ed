// The search: A* over placements, in whole picoseconds so that equal costs compare as equal.
#include "redistribute/search.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <queue>
#include <unordered_map>

namespace meshtorch::internal {
namespace {

// Compared in this order: time, then steps.
struct Cost {
  std::int64_t picoseconds = 0;
  std::int64_t steps = 0;
  friend auto operator<=>(const Cost&, const Cost&) = default;
};

constexpr Cost kUnreached{std::numeric_limits<std::int64_t>::max(), 0};

constexpr double kLongest = 1e17;  // picoseconds, about a day: sums of such steps do not overflow

// Up for what a move costs, down for what a lower bound promises, so that the bound stays one.
std::int64_t rounded_up(double seconds) {
  return static_cast<std::int64_t>(std::ceil(std::min(seconds * 1e12, kLongest)));
}
std::int64_t rounded_down(double seconds) {
  return static_cast<std::int64_t>(std::min(seconds * 1e12, kLongest));
}

struct Node {
  Cost cost = kUnreached;
  bool is_settled = false;
  State previous;
  Move move;               // from `previous`
  std::int64_t bytes = 0;  // local, on the rank that holds most
  std::int64_t rest = 0;   // a lower bound of the way from here to the target, in picoseconds
};

struct Entry {
  Cost bound;  // of the whole way through this state
  State state;
  friend auto operator<=>(const Entry&, const Entry&) = default;
};

class Search {
 public:
  Search(const Problem& problem, SearchStats& stats)
      : problem_(problem),
        stats_(stats),
        states_(problem),
        moves_(states_, stats),
        target_(states_.encode(problem.to)),
        target_node_(nodes_[target_]) {
    target_node_.bytes = states_.largest_bytes(target_);
    for (const AxisCost& cost : problem.costs) fastest_ = std::min(fastest_, cost.seconds_per_byte);
  }

  std::vector<Step> run() {
    const State source = states_.encode(problem_.from);
    node_of(source).cost = {};
    queue_.push({{}, source});
    while (!target_node_.is_settled) {
      const State state = queue_.top().state;
      queue_.pop();
      Node& node = nodes_[state];
      if (node.is_settled) continue;
      node.is_settled = true;
      if (state != target_) expand(state, node);
    }
    return steps_to(target_);
  }

 private:
  void expand(const State& state, const Node& node) {
    ++stats_.states;
    // The target first: what it costs limits which other states are worth a look.
    if (const auto direct = moves_.between(state, target_)) relax(state, node, target_, *direct);
    moves_.for_each(state, [&](const State& after, const Move& move) {
      if (after != target_) relax(state, node, after, move);
    });
  }

  void relax(const State& state, const Node& node, const State& after, const Move& move) {
    Node& next = node_of(after);
    if (next.is_settled) return;
    const LocalBytes bytes{node.bytes, next.bytes};
    const auto cost_of = [&](const Move& m) {
      return Cost{node.cost.picoseconds + rounded_up(moves_.price(after, m, bytes).seconds),
                  node.cost.steps + 1};
    };
    const auto improves = [&](const Cost& cost) {
      return cost < next.cost && Cost{cost.picoseconds + next.rest, cost.steps} < target_node_.cost;
    };
    if (!improves(cost_of(move))) return;
    std::optional<Move> taken = move;
    if (!moves_.allowed(state, after, move)) taken = moves_.widened(state, after, move, bytes);
    if (!taken || !improves(cost_of(*taken))) return;
    next.cost = cost_of(*taken);
    next.previous = state;
    next.move = *taken;
    queue_.push({{next.cost.picoseconds + next.rest, next.cost.steps}, after});
  }

  Node& node_of(const State& state) {
    const auto [entry, is_new] = nodes_.try_emplace(state);
    if (is_new) {
      entry->second.bytes = states_.largest_bytes(state);
      entry->second.rest = rest_of(state, entry->second.bytes);
    }
    return entry->second;
  }

  // A lower bound of the way from `state` on. An axis that is split or pending other than the
  // target has it needs a collective, and a collective that takes it in pays its latency. No
  // collective adds more to what a rank holds than it moves.
  std::int64_t rest_of(const State& state, std::int64_t bytes) const {
    double latency = 0;
    for (std::size_t axis = 0; axis < state.size(); ++axis) {
      const bool is_local = state[axis] == target_[axis] || states_.placement(state, axis).is_replicate();
      if (!is_local) latency = std::max(latency, problem_.costs[axis].latency_s);
    }
    const std::int64_t missing = std::max<std::int64_t>(0, target_node_.bytes - bytes);
    return rounded_down(latency + static_cast<double>(missing) * fastest_);
  }

  std::vector<Step> steps_to(const State& end) {
    std::vector<Step> steps;
    for (State after = end; nodes_[after].cost.steps > 0;) {
      const State before = nodes_[after].previous;
      const Move move = nodes_[after].move;
      const LocalBytes bytes{nodes_[before].bytes, nodes_[after].bytes};
      const Price price = moves_.price(after, move, bytes);
      Step step{.kind = move.kind,
                .axes = {},
                .before = states_.decode(before),
                .after = states_.decode(after),
                .op = move.op};
      for (std::size_t axis = 0; axis < states_.axes(); ++axis) {
        if (contains(move.axes, axis)) step.axes.push_back(static_cast<int>(axis));
      }
      step.seconds = price.seconds;
      step.bytes_sent = price.bytes_sent;
      step.peak_bytes = bytes.before + bytes.after;
      steps.push_back(std::move(step));
      after = before;
    }
    std::reverse(steps.begin(), steps.end());
    return steps;
  }

  const Problem& problem_;
  SearchStats& stats_;
  States states_;
  Moves moves_;
  State target_;
  double fastest_ = std::numeric_limits<double>::infinity();  // seconds per byte of the best axis
  std::unordered_map<State, Node, StateHash> nodes_;
  Node& target_node_;
  std::priority_queue<Entry, std::vector<Entry>, std::greater<>> queue_;
};

}  // namespace

std::vector<Step> cheapest_steps(const Problem& problem, SearchStats& stats) {
  return Search(problem, stats).run();
}

}  // namespace meshtorch::internal
