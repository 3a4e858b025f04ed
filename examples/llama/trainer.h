// One training step of a Llama on a mesh: forward, backward, clipping, AdamW.
#pragma once

#include <meshtorch/device_mesh.h>
#include <torch/optim/adamw.h>

#include <functional>

#include "learning_rate.h"
#include "model.h"
#include "tokens.h"

namespace llama {

struct TrainerOptions {
  std::int64_t batch_size = 16;  // rows of a step, over all ranks
  std::int64_t accumulate = 1;   // parts into which a step's rows are cut, one after the other
  LearningRate learning_rate = {};
  double weight_decay = 0.1;  // of matrices; norms and biases have none
  double beta1 = 0.9;
  double beta2 = 0.95;
  double max_gradient_norm = 1;  // 0: no clipping
  bool bfloat16 = false;         // activations by autocast; parameters keep their type
};

struct StepOutcome {
  double loss = 0;
  double gradient_norm = 0;  // before clipping
  double learning_rate = 0;
  // False if the loss or a gradient is infinite or no number: the parameters are as they were.
  bool is_finite = true;
};

class Trainer {
 public:
  // The model lies on `mesh` already. All ranks make the same calls.
  Trainer(Llama model, const meshtorch::DeviceMesh& mesh, const TrainerOptions& options);

  // Step 0, 1, … of the training.
  StepOutcome step(std::int64_t index, const TokenWindows& data);

  torch::optim::AdamW& optimizer() { return optimizer_; }

  // Called between the forward and the backward pass of each part of a step.
  std::function<void()> on_forward_done;

 private:
  torch::Tensor part_loss(std::int64_t index, std::int64_t part, const TokenWindows& data);
  torch::Tensor backward(std::int64_t index, const TokenWindows& data);

  Llama model_;
  meshtorch::DeviceMesh mesh_;
  TrainerOptions options_;
  torch::optim::AdamW optimizer_;
};

}  // namespace llama
