// Names what belongs to a training's state.
#include "training_state.h"

#include <c10/util/Exception.h>

namespace llama {

namespace checkpoint = meshtorch::checkpoint;

TrainingState::TrainingState(Llama model, torch::optim::AdamW& optimizer) : model_(std::move(model)) {
  state_.add("model", *model_).add("optimizer", optimizer, *model_).add("step", steps_done_).add_random();
}

std::int64_t TrainingState::load(const std::string& directory) {
  TORCH_CHECK_VALUE(
      checkpoint::exists(directory), "meshtorch-llama: there is no checkpoint in \"", directory,
      "\"\n  options --resume and --checkpoint\n  do: name the directory of an earlier run, or leave "
      "--resume out to start anew");
  checkpoint::load(directory, state_);
  return steps_done_;
}

void TrainingState::save(const std::string& directory, std::int64_t steps_done) {
  wait();
  steps_done_ = steps_done;
  checkpoint::save(directory, state_);
}

void TrainingState::save_in_background(const std::string& directory, std::int64_t steps_done) {
  wait();
  steps_done_ = steps_done;
  saving_ = checkpoint::save_async(directory, state_);
}

void TrainingState::wait() {
  if (saving_) saving_->wait();
  saving_.reset();
}

void export_model(Llama model, const std::string& directory) {
  checkpoint::export_hf(directory, *model, model->config.to_json());
}

}  // namespace llama
