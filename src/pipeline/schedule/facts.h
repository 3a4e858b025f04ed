// What the rows of a table say by themselves: its stages, its micro-batches, and whether each row is in
// order. No torch.
#pragma once

#include <cstddef>
#include <vector>

#include "meshtorch/pipeline_schedule.h"

namespace meshtorch::internal {

struct TableFacts {
  int stages = 0;
  int microbatches = 0;
  std::vector<int> rank_of_stage;
  bool has_messages = false;
  bool has_backward = false;

  int rank_of(int stage) const { return rank_of_stage[static_cast<std::size_t>(stage)]; }
  // True if stage + step exists and is on another rank.
  bool crosses_ranks(int stage, int step) const {
    const int other = stage + step;
    return other >= 0 && other < stages && rank_of(other) != rank_of(stage);
  }
  // The place of a pair of stage and micro-batch in an array of all of them.
  std::size_t index(int stage, int microbatch) const {
    return static_cast<std::size_t>(stage) * static_cast<std::size_t>(microbatches) +
           static_cast<std::size_t>(microbatch);
  }
  std::size_t pairs() const {
    return static_cast<std::size_t>(stages) * static_cast<std::size_t>(microbatches);
  }
};

// Throws std::invalid_argument if an action is missing, is there twice, or comes before another action of its
// row that it needs.
TableFacts check_rows(const PipelineTable& table);

}  // namespace meshtorch::internal
