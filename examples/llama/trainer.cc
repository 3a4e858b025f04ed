// The training step. The same code runs on one rank and on any mesh: batch and parameters are distributed
// tensors, and the library does the rest.
#include "trainer.h"

#include <ATen/autocast_mode.h>
#include <ATen/record_function.h>
#include <c10/util/Exception.h>
#include <meshtorch/gradients.h>
#include <meshtorch/loss_parallel.h>
#include <torch/torch.h>

#include "parallelize.h"

namespace llama {
namespace {

namespace mt = meshtorch;

// Matrix products and attention in bfloat16 while it lives, on this thread.
class Autocast {
 public:
  explicit Autocast(bool wanted) : wanted_(wanted) {
    if (!wanted_) return;
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, at::kBFloat16);
    at::autocast::increment_nesting();
  }
  ~Autocast() {
    if (!wanted_) return;
    if (at::autocast::decrement_nesting() == 0) at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
  }
  Autocast(const Autocast&) = delete;
  Autocast& operator=(const Autocast&) = delete;

 private:
  bool wanted_;
};

TrainingBatch batch_of(const TokenWindows& data, std::int64_t step, std::int64_t first_row, std::int64_t rows,
                       const mt::DeviceMesh& mesh) {
  torch::Tensor tokens = torch::empty({rows, data.length() + 1}, torch::kLong);
  auto* next = tokens.mutable_data_ptr<std::int64_t>();
  for (std::int64_t row = first_row; row < first_row + rows; ++row) {
    const auto window = data.window(step, row);
    next = std::copy(window.begin(), window.end(), next);
  }
  return {tokens.slice(1, 0, -1).contiguous(), tokens.slice(1, 1).contiguous(), mesh};
}

torch::optim::AdamW make_optimizer(const torch::nn::Module& model, const TrainerOptions& options) {
  std::vector<torch::Tensor> matrices, others;
  for (const torch::Tensor& p : model.parameters()) (p.dim() > 1 ? matrices : others).push_back(p);
  const auto adam = [&](double decay) {
    return std::make_unique<torch::optim::AdamWOptions>(torch::optim::AdamWOptions(options.learning_rate.peak)
                                                            .betas({options.beta1, options.beta2})
                                                            .weight_decay(decay));
  };
  std::vector<torch::optim::OptimizerParamGroup> groups;
  groups.emplace_back(matrices, adam(options.weight_decay));
  groups.emplace_back(others, adam(0));
  return torch::optim::AdamW(groups, *adam(options.weight_decay));
}

// The norm of all gradients together. Squares of split gradients stay pending sums until they are all added
// up: one number is communicated.
torch::Tensor global_norm(const std::vector<torch::Tensor>& parameters) {
  std::vector<torch::Tensor> squares;
  for (const torch::Tensor& p : parameters) {
    if (p.grad().defined()) squares.push_back(p.grad().square().sum());
  }
  return torch::stack(squares).sum().sqrt();
}

void scale_gradients(const std::vector<torch::Tensor>& parameters, double factor) {
  for (const torch::Tensor& p : parameters) {
    if (p.grad().defined()) p.mutable_grad().mul_(factor);
  }
}

}  // namespace

Trainer::Trainer(Llama model, const mt::DeviceMesh& mesh, const TrainerOptions& options)
    : model_(std::move(model)), mesh_(mesh), options_(options), optimizer_(make_optimizer(*model_, options)) {
  TORCH_CHECK_VALUE(options.accumulate > 0 && options.batch_size % options.accumulate == 0,
                    "meshtorch-llama: a batch of ", options.batch_size, " rows cannot be cut into ",
                    options.accumulate, " equal parts\n  options --batch-size and --accumulate\n",
                    "  do: make the batch a multiple of the parts");
}

torch::Tensor Trainer::part_loss(std::int64_t index, std::int64_t part, const TokenWindows& data) {
  const std::int64_t rows = options_.batch_size / options_.accumulate;
  const TrainingBatch batch = batch_of(data, index, part * rows, rows, mesh_);
  RECORD_USER_SCOPE("forward");
  const mt::loss_parallel logits_stay_split;
  torch::Tensor logits_BSV;
  {
    const Autocast autocast(options_.bfloat16);
    logits_BSV = model_(batch.ids_BS, nullptr, torch::Tensor(), batch.positions_BS);
  }
  if (options_.bfloat16) logits_BSV = logits_BSV.to(torch::kFloat);
  const torch::Tensor loss =
      torch::nn::functional::cross_entropy(logits_BSV.flatten(0, 1), batch.targets_BS.flatten(0, 1));
  return loss / static_cast<double>(options_.accumulate);
}

// Gradients are pending sums while they are accumulated: nothing is communicated for them here.
torch::Tensor Trainer::backward(std::int64_t index, const TokenWindows& data) {
  torch::Tensor loss;
  for (std::int64_t part = 0; part < options_.accumulate; ++part) {
    const torch::Tensor part_of_loss = part_loss(index, part, data);
    if (on_forward_done) on_forward_done();
    RECORD_USER_SCOPE("backward");
    part_of_loss.backward();
    loss = loss.defined() ? loss + part_of_loss.detach() : part_of_loss.detach();
  }
  return loss;
}

StepOutcome Trainer::step(std::int64_t index, const TokenWindows& data) {
  const std::vector<torch::Tensor> parameters = model_->parameters();
  optimizer_.zero_grad();
  StepOutcome outcome;
  outcome.learning_rate = options_.learning_rate.at(index);
  outcome.loss = backward(index, data).item<double>();

  RECORD_USER_SCOPE("update");
  const torch::NoGradGuard no_grad;
  mt::reduce_gradients(parameters);
  outcome.gradient_norm = global_norm(parameters).item<double>();
  outcome.is_finite = std::isfinite(outcome.loss) && std::isfinite(outcome.gradient_norm);
  if (!outcome.is_finite) return outcome;

  if (options_.max_gradient_norm > 0 && outcome.gradient_norm > options_.max_gradient_norm) {
    scale_gradients(parameters, options_.max_gradient_norm / outcome.gradient_norm);
  }
  for (torch::optim::OptimizerParamGroup& group : optimizer_.param_groups()) {
    group.options().set_lr(outcome.learning_rate);
  }
  optimizer_.step();
  return outcome;
}

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
