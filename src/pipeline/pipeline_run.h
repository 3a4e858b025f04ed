// One step of a pipeline on this rank: runs its row of the table.
#pragma once

#include <chrono>
#include <map>
#include <optional>
#include <vector>

#include "pipeline/pipeline_impl.h"
#include "pipeline/split_backward.h"

namespace meshtorch::internal {

class PipelineRun {
 public:
  // Goes forward only if there is no loss.
  PipelineRun(const PipelineImpl& pipeline, const PipelineTable& table, KnownFacts& facts,
              const PipelineLoss& loss);
  PipelineResult run(const std::vector<at::Tensor>& inputs, const at::Tensor& target);

 private:
  using Tensors = std::vector<at::Tensor>;

  // One micro-batch in one stage. Each member lives from the action that makes it to the last that needs it.
  struct Pass {
    Tensors inputs;       // from F to B or I: leaves whose gradients are those of the stage before
    Tensors outputs;      // from F to SEND_F, or to F of the next stage
    BackwardStart start;  // from F on: the edges of outputs; gradients are added when they come
    std::vector<TensorFacts> outputs_with_gradients;
    Tensors input_gradients;   // from B or I to SEND_B, or to B or I of the stage before
    BackwardStart parameters;  // from I to W
    // fully_shard and replicate end their work at the end of one backward, so that I runs both halves.
    bool has_data_parallel_groups = false;
  };

  void run_action(const PipelineAction& action);
  void run_forward(const PipelineAction& action);
  void finish_last_stage(Pass& pass, int microbatch);
  // Adds the gradients of the outputs to where backward starts.
  void complete_start(Pass& pass, const PipelineAction& action);
  void run_backward_input(const PipelineAction& action);
  void run_whole_backward(const PipelineAction& action);
  void send_forward(const PipelineAction& action);
  void receive_forward(const PipelineAction& action);
  void send_backward(const PipelineAction& action);
  void receive_backward(const PipelineAction& action);

  Pass& pass(int stage, int microbatch) { return passes_[{stage, microbatch}]; }
  Pass& pass(const PipelineAction& action) { return pass(action.stage, action.microbatch); }
  bool is_last(int stage) const { return stage + 1 == pipeline_.stages(); }
  double rows_share(int microbatch) const;
  PipelineResult result();

  const PipelineImpl& pipeline_;
  const PipelineTable& table_;
  KnownFacts& facts_;
  const PipelineLoss& loss_;
  StageMessages messages_;
  std::map<std::pair<int, int>, Pass> passes_;  // by stage and micro-batch
  std::vector<Tensors> inputs_;                 // by micro-batch, on the rank of stage 0
  Tensors targets_;                             // by micro-batch, on the rank of the last stage
  std::vector<Tensors> outputs_;                // by micro-batch, on the rank of the last stage
  Tensors losses_;
  std::vector<PlannedAction> timeline_;
};

}  // namespace meshtorch::internal
