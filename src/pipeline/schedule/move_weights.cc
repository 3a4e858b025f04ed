// Puts each W of a table where its rank has nothing else to do.
#include <deque>
#include <optional>
#include <tuple>

#include "pipeline/schedule/clock.h"
#include "pipeline/schedule/families.h"

namespace meshtorch::internal {
namespace {

using Kind = PipelineAction::Kind;

struct RankState {
  std::vector<PipelineAction> order;  // F and I
  std::size_t next = 0;
  std::deque<PipelineAction> weights;  // that may run
  int alive = 0;                       // activations
  int limit = 0;
};

struct Candidate {
  double begin;
  std::size_t rank;
  PipelineAction action;
};

// The next action of a rank, or nothing while it has to wait.
std::optional<Candidate> candidate_of(const RankState& state, std::size_t rank, const PipelineClock& clock) {
  if (state.next < state.order.size()) {
    const PipelineAction& action = state.order[state.next];
    const std::optional<double> begin = clock.earliest(rank, action);
    const bool fits = action.kind != Kind::forward || state.alive < state.limit;
    const bool leaves_gap =
        begin && !state.weights.empty() && clock.now(rank) + clock.duration(Kind::backward_weight) <= *begin;
    if (begin && fits && !leaves_gap) return Candidate{*begin, rank, action};
  }
  if (state.weights.empty()) return std::nullopt;
  return Candidate{clock.now(rank), rank, state.weights.front()};
}

}  // namespace

PipelineTable move_weights(const PipelineTable& table, const PipelineTimes& times,
                           const std::vector<int>& limits) {
  const TableFacts facts = check_rows(table);
  std::vector<RankState> states(table.rows.size());
  for (std::size_t rank = 0; rank < states.size(); ++rank) {
    states[rank].limit = limits[rank];
    for (const PipelineAction& action : table.rows[rank]) {
      if (action.kind == Kind::forward || action.kind == Kind::backward_input)
        states[rank].order.push_back(action);
    }
  }
  PipelineClock clock(facts, states.size(), times);
  PipelineTable result;
  result.rows.resize(states.size());
  for (;;) {
    std::optional<Candidate> first;
    bool is_over = true;
    for (std::size_t rank = 0; rank < states.size(); ++rank) {
      is_over = is_over && states[rank].next == states[rank].order.size() && states[rank].weights.empty();
      const std::optional<Candidate> candidate = candidate_of(states[rank], rank, clock);
      if (candidate && (!first || candidate->begin < first->begin)) first = candidate;
    }
    if (is_over) return result;
    if (!first) return {};
    RankState& state = states[first->rank];
    clock.run(first->rank, first->action);
    result.rows[first->rank].push_back(first->action);
    if (first->action.kind == Kind::backward_weight) {
      state.weights.pop_front();
      --state.alive;
      continue;
    }
    ++state.next;
    if (first->action.kind == Kind::forward) ++state.alive;
    if (first->action.kind == Kind::backward_input)
      state.weights.push_back({.kind = Kind::backward_weight,
                               .stage = first->action.stage,
                               .microbatch = first->action.microbatch});
  }
}

}  // namespace meshtorch::internal
