// What a pipeline keeps between steps.
#pragma once

#include <map>
#include <vector>

#include "meshtorch/pipeline.h"
#include "pipeline/stage_messages.h"

namespace meshtorch::internal {

// Types and sizes of what the stages of this rank receive and pass on, by stage and micro-batch.
struct KnownFacts {
  std::map<std::pair<int, int>, std::vector<TensorFacts>> inputs;
  std::map<std::pair<int, int>, std::vector<TensorFacts>> outputs;
};

class PipelineImpl {
 public:
  PipelineImpl(std::vector<PipelineStage> stages, const PipelineTable& table, PipelineLoss loss,
               PipelineOptions options);

  PipelineResult step(const std::vector<at::Tensor>& inputs, const at::Tensor& target);
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);
  void forget_shapes();
  const PipelineTable& table() const { return training_.table; }

 private:
  friend class PipelineRun;

  // A table with its messages, and what is known of them.
  struct Program {
    PipelineTable table;
    KnownFacts facts;
  };

  const PipelineStage& stage(int index) const;
  bool is_here(int index) const { return rank_of(index) == group_.rank(); }
  int rank_of(int index) const { return rank_of_stage_[static_cast<std::size_t>(index)]; }
  int stages() const { return static_cast<int>(rank_of_stage_.size()); }
  void check_stages(int ranks) const;

  const Group group_;
  const std::vector<PipelineStage> stages_;  // of this rank
  const PipelineLoss loss_;
  const PipelineOptions options_;
  std::vector<int> rank_of_stage_;
  int microbatches_ = 0;
  bool trains_ = false;
  Program training_;
  Program inference_;
};

}  // namespace meshtorch::internal
