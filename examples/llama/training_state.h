// The state of a training as a checkpoint: parameters, optimiser, random numbers, and how far it is.
#pragma once

#include <meshtorch/checkpoint.h>
#include <torch/optim/adamw.h>

#include <optional>
#include <string>

#include "model.h"

namespace llama {

// All ranks make the same calls.
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
