// The time of each rank while a table is played.
#include "pipeline/schedule/clock.h"

#include <algorithm>

namespace meshtorch::internal {

using Kind = PipelineAction::Kind;

PipelineClock::PipelineClock(const TableFacts& facts, std::size_t ranks, const PipelineTimes& times)
    : facts_(facts),
      times_(times),
      now_(ranks),
      forward_end_(facts.pairs(), -1.0),
      backward_end_(facts.pairs(), -1.0) {}

double PipelineClock::duration(Kind kind) const {
  switch (kind) {
    case Kind::forward:
      return times_.forward;
    case Kind::backward:
      return times_.backward_input + times_.backward_weight;
    case Kind::backward_input:
      return times_.backward_input;
    case Kind::backward_weight:
      return times_.backward_weight;
    default:
      return 0;
  }
}

std::optional<PipelineAction> PipelineClock::missing(const PipelineAction& action) const {
  const bool is_forward = action.kind == Kind::forward;
  const bool is_backward = action.kind == Kind::backward || action.kind == Kind::backward_input;
  const int other = action.stage + (is_forward ? -1 : 1);
  if (!(is_forward || is_backward) || other < 0 || other == facts_.stages) return std::nullopt;
  const double end = (is_forward ? forward_end_ : backward_end_)[facts_.index(other, action.microbatch)];
  if (end >= 0) return std::nullopt;
  return PipelineAction{
      .kind = is_forward ? Kind::forward : Kind::backward, .stage = other, .microbatch = action.microbatch};
}

std::optional<double> PipelineClock::earliest(std::size_t rank, const PipelineAction& action) const {
  if (missing(action)) return std::nullopt;
  double begin = now_[rank];
  const auto wait_for = [&](const std::vector<double>& ends, int stage) {
    const double message = facts_.rank_of(stage) == facts_.rank_of(action.stage) ? 0 : times_.message;
    begin = std::max(begin, ends[facts_.index(stage, action.microbatch)] + message);
  };
  if (action.kind == Kind::forward && action.stage > 0) wait_for(forward_end_, action.stage - 1);
  if ((action.kind == Kind::backward || action.kind == Kind::backward_input) &&
      action.stage + 1 < facts_.stages)
    wait_for(backward_end_, action.stage + 1);
  return begin;
}

PlannedAction PipelineClock::run(std::size_t rank, const PipelineAction& action) {
  const double begin = *earliest(rank, action);
  const double end = begin + duration(action.kind);
  if (action.kind == Kind::forward) forward_end(action) = end;
  if (action.kind == Kind::backward || action.kind == Kind::backward_input) backward_end(action) = end;
  now_[rank] = end;
  return {action, begin, end};
}

void PipelineClock::meet(std::size_t rank, std::size_t other) {
  now_[rank] = now_[other] = std::max(now_[rank], now_[other]);
}

}  // namespace meshtorch::internal
