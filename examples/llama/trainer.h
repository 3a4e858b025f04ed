// One training step of a Llama on a mesh, forward, backward, clipping, AdamW, and the state of a training as
// a checkpoint.
#pragma once

#include <meshtorch/checkpoint.h>
#include <meshtorch/device_mesh.h>
#include <torch/optim/adamw.h>

#include <functional>
#include <optional>
#include <string>

#include "model.h"
#include "schedule.h"

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

// Parameters, optimiser, random numbers, and how far the training is, as a checkpoint. All ranks make the
// same calls.
class TrainingState {
 public:
  TrainingState(Llama model, torch::optim::AdamW& optimizer);
  TrainingState(const TrainingState&) = delete;
  TrainingState& operator=(const TrainingState&) = delete;

  // Loads what any mesh saved, and tells how many steps are done.
  std::int64_t load(const std::string& directory);
  void save(const std::string& directory, std::int64_t steps_done);
  // The state may change at once; the next save waits for this one.
  void save_in_background(const std::string& directory, std::int64_t steps_done);

 private:
  void wait();

  Llama model_;
  std::int64_t steps_done_ = 0;
  meshtorch::checkpoint::State state_;
  std::optional<meshtorch::checkpoint::AsyncSave> saving_;
};

// Writes weights and configuration in Hugging Face's format.
void export_model(Llama model, const std::string& directory);

}  // namespace llama
