// The time of each rank while a table is played: when an action can begin, and what it ends. No torch.
#pragma once

#include <optional>
#include <vector>

#include "pipeline/schedule/facts.h"

namespace meshtorch::internal {

class PipelineClock {
 public:
  PipelineClock(const TableFacts& facts, std::size_t ranks, const PipelineTimes& times);

  double now(std::size_t rank) const { return now_[rank]; }
  // The first time at which the action can begin, or nothing while what it needs has not been run. Messages
  // wait for nothing: the actions that use them do.
  std::optional<double> earliest(std::size_t rank, const PipelineAction& action) const;
  // Requires earliest().
  PlannedAction run(std::size_t rank, const PipelineAction& action);
  // Sets both ranks to the time at which the later of them is there.
  void meet(std::size_t rank, std::size_t other);
  // The action of another rank that this one waits for, or nothing.
  std::optional<PipelineAction> missing(const PipelineAction& action) const;
  double duration(PipelineAction::Kind kind) const;

 private:
  double& forward_end(const PipelineAction& action) {
    return forward_end_[facts_.index(action.stage, action.microbatch)];
  }
  double& backward_end(const PipelineAction& action) {
    return backward_end_[facts_.index(action.stage, action.microbatch)];
  }

  const TableFacts& facts_;
  const PipelineTimes times_;
  std::vector<double> now_;
  std::vector<double> forward_end_;   // by stage and micro-batch; negative until it has run
  std::vector<double> backward_end_;  // of B or I
};

}  // namespace meshtorch::internal
