// How the rows of schedules are written, and those whose stages form a V. No torch.
#pragma once

#include <deque>
#include <vector>

#include "meshtorch/pipeline_schedule.h"

namespace meshtorch::internal {

// Writes a row: each action is of the next micro-batch of its stage. What is beyond the last one is left out.
class RowWriter {
 public:
  RowWriter(int stages, int microbatches)
      : microbatches_(microbatches),
        forwards_(static_cast<std::size_t>(stages)),
        inputs_(forwards_),
        weights_(forwards_) {}

  void forward(int stage, bool overlaps_next = false);
  void backward(int stage);
  void backward_input(int stage);
  void backward_weight(int stage);
  // W of the earliest I that has none. False if there is none.
  bool oldest_weight();
  // How many micro-batches of the stage went forward, those that were left out included.
  int forwards(int stage) const { return forwards_[static_cast<std::size_t>(stage)]; }

  std::vector<PipelineAction> row;

 private:
  bool add(PipelineAction::Kind kind, int stage, int& next, bool overlaps_next = false);
  int& count(std::vector<int>& counts, int stage) { return counts[static_cast<std::size_t>(stage)]; }

  const int microbatches_;
  std::vector<int> forwards_;
  std::vector<int> inputs_;
  std::vector<int> weights_;
  std::deque<int> stages_without_weight_;
};

// Rank r of p has the stages r and 2 p - 1 - r.
PipelineTable zero_bubble_v(int ranks, int microbatches);
PipelineTable dual_pipe_v(int ranks, int microbatches);
PipelineTable v_half(int ranks, int microbatches);
PipelineTable v_min(int ranks, int microbatches);

// The same order of F and I, each W where its rank has nothing else to do, or where rank r would hold more
// than limits[r] activations otherwise. Requires a table whose backwards are all I and W; returns one without
// rows if the limits are too low.
PipelineTable move_weights(const PipelineTable& table, const PipelineTimes& times,
                           const std::vector<int>& limits);

}  // namespace meshtorch::internal
