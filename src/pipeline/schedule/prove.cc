// The proof of a table: it is complete and in order, it ends however messages are buffered, and this is what
// it costs.
#include <algorithm>

#include "pipeline/schedule/play.h"

namespace meshtorch {
using namespace internal;
namespace {

using Kind = PipelineAction::Kind;

int peak_activations_of(const std::vector<PlannedAction>& row) {
  int alive = 0;
  int peak = 0;
  for (const PlannedAction& planned : row) {
    const Kind kind = planned.action.kind;
    if (kind == Kind::forward) peak = std::max(peak, ++alive);
    if (kind == Kind::backward || kind == Kind::backward_weight) --alive;
  }
  return peak;
}

double idle_of(const std::vector<PlannedAction>& row) {
  double idle = 0;
  for (std::size_t i = 1; i < row.size(); ++i) idle += row[i].begin - row[i - 1].end;
  return idle;
}

}  // namespace

PipelineProof prove(const PipelineTable& table, const PipelineTimes& times) {
  const TableFacts facts = check_rows(table);
  Played played = play(table, facts, times, Buffering::unlimited);
  if (!played.is_complete) refuse_deadlock(table, facts, played, Buffering::unlimited);
  const PipelineTable complete = add_messages(table, times);
  const TableFacts complete_facts = check_rows(complete);
  const Played unbuffered = play(complete, complete_facts, times, Buffering::none);
  if (!unbuffered.is_complete) refuse_deadlock(complete, complete_facts, unbuffered, Buffering::none);
  PipelineProof proof{
      .stages = facts.stages, .microbatches = facts.microbatches, .rank_of_stage = facts.rank_of_stage};
  for (const std::vector<PlannedAction>& row : played.timeline) {
    if (!row.empty()) proof.seconds = std::max(proof.seconds, row.back().end);
    proof.idle.push_back(idle_of(row));
    proof.peak_activations.push_back(facts.has_backward ? peak_activations_of(row) : 0);
  }
  proof.timeline = std::move(played.timeline);
  return proof;
}

}  // namespace meshtorch
