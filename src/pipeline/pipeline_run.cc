// One step of a pipeline on this rank.
#include "pipeline/pipeline_run.h"

#include <ATen/ops/add.h>
#include <ATen/ops/cat.h>
#include <ATen/ops/full_like.h>
#include <ATen/ops/mul.h>
#include <ATen/ops/stack.h>
#include <ATen/ops/tensor_split.h>
#include <ATen/ops/zeros_like.h>
#include <torch/csrc/autograd/variable.h>

#include "data_parallel/parameter_group.h"
#include "meshtorch/collectives.h"

namespace meshtorch::internal {
namespace {

using Kind = PipelineAction::Kind;
using Tensors = std::vector<at::Tensor>;

Tensors split_rows(const at::Tensor& batch, int microbatches, const char* what) {
  TORCH_CHECK_VALUE(batch.defined() && batch.dim() > 0 && batch.size(0) >= microbatches, "meshtorch: ", what,
                    " of a pipeline with ", microbatches, " micro-batches is ",
                    batch.defined() ? c10::str("of shape ", batch.sizes()) : "undefined",
                    "\n  do: give a tensor of ", microbatches, " rows or more along dim 0");
  return at::tensor_split(batch, microbatches);
}

// Leaves of graphs of their own.
Tensors as_leaves(const Tensors& tensors, const std::vector<TensorFacts>& facts) {
  Tensors leaves;
  for (std::size_t i = 0; i < tensors.size(); ++i)
    leaves.push_back(wait_tensor(tensors[i]).detach().requires_grad_(facts[i].requires_grad));
  return leaves;
}

std::vector<TensorFacts> facts_of(const Tensors& tensors) {
  std::vector<TensorFacts> facts;
  for (const at::Tensor& tensor : tensors) facts.push_back(TensorFacts::of(tensor));
  return facts;
}

std::vector<TensorFacts> with_gradients(const std::vector<TensorFacts>& facts) {
  std::vector<TensorFacts> result;
  for (const TensorFacts& one : facts) {
    if (one.requires_grad) result.push_back({one.sizes, one.type, false});
  }
  return result;
}

}  // namespace

PipelineRun::PipelineRun(const PipelineImpl& pipeline, const PipelineTable& table, KnownFacts& facts,
                         const PipelineLoss& loss)
    : pipeline_(pipeline), table_(table), facts_(facts), loss_(loss), messages_(pipeline.group_) {}

PipelineResult PipelineRun::run(const Tensors& inputs, const at::Tensor& target) {
  const auto microbatches = static_cast<std::size_t>(pipeline_.microbatches_);
  if (pipeline_.is_here(0)) {
    inputs_.resize(microbatches);
    for (const at::Tensor& input : inputs) {
      const Tensors parts = split_rows(input, pipeline_.microbatches_, "an input");
      for (std::size_t i = 0; i < microbatches; ++i) inputs_[i].push_back(parts[i]);
    }
  }
  if (pipeline_.is_here(pipeline_.stages() - 1)) {
    if (loss_) targets_ = split_rows(target, pipeline_.microbatches_, "the target");
    outputs_.resize(microbatches);
    losses_.resize(loss_ ? microbatches : 0);
  }
  const auto begin = std::chrono::steady_clock::now();
  const auto now = [&] {
    return std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  };
  for (const PipelineAction& action : table_.rows[static_cast<std::size_t>(pipeline_.group_.rank())]) {
    const double start = now();
    run_action(action);
    timeline_.push_back({action, start, now()});
  }
  messages_.finish();
  return result();
}

void PipelineRun::run_action(const PipelineAction& action) {
  switch (action.kind) {
    case Kind::forward:
      return run_forward(action);
    case Kind::backward:
      return run_whole_backward(action);
    case Kind::backward_input:
      return run_backward_input(action);
    case Kind::backward_weight:
      return run_backward(std::exchange(pass(action).parameters, {}));
    case Kind::send_forward:
      return send_forward(action);
    case Kind::receive_forward:
      return receive_forward(action);
    case Kind::send_backward:
      return send_backward(action);
    case Kind::receive_backward:
      return receive_backward(action);
    default:
      return;
  }
}

void PipelineRun::run_forward(const PipelineAction& action) {
  Pass& mine = pass(action);
  if (action.stage == 0) {
    mine.inputs = inputs_[static_cast<std::size_t>(action.microbatch)];
  } else {
    const bool is_local = pipeline_.is_here(action.stage - 1);
    const std::pair<int, int> key{action.stage, action.microbatch};
    if (is_local) {
      Tensors given = std::exchange(pass(action.stage - 1, action.microbatch).outputs, {});
      mine.inputs = as_leaves(given, facts_of(given));
    } else {
      mine.inputs = as_leaves(mine.inputs, facts_.inputs.at(key));
    }
  }
  const std::uint64_t groups_before = ParameterGroup::forwards_of_thread();
  mine.outputs = pipeline_.stage(action.stage).forward()(mine.inputs);
  mine.has_data_parallel_groups = ParameterGroup::forwards_of_thread() != groups_before;
  if (is_last(action.stage)) return finish_last_stage(mine, action.microbatch);
  if (!loss_) {
    mine.inputs.clear();
    return;
  }
  mine.outputs_with_gradients = with_gradients(facts_of(mine.outputs));
  for (const at::Tensor& output : mine.outputs) {
    if (output.requires_grad()) mine.start.edges.push_back(torch::autograd::impl::gradient_edge(output));
  }
}

void PipelineRun::finish_last_stage(Pass& mine, int microbatch) {
  const auto number = static_cast<std::size_t>(microbatch);
  const Tensors outputs = std::exchange(mine.outputs, {});
  if (!loss_ || pipeline_.options_.keeps_outputs) {
    for (const at::Tensor& output : outputs) outputs_[number].push_back(output.detach());
  }
  if (!loss_) return;
  TORCH_CHECK_VALUE(!outputs.empty(),
                    "meshtorch: the last stage of a pipeline gave nothing\n  do: return what the loss takes");
  const at::Tensor loss = loss_(outputs[0], targets_[number]);
  TORCH_CHECK_VALUE(loss.defined() && loss.numel() == 1, "meshtorch: the loss of a pipeline is ",
                    loss.defined() ? c10::str("of shape ", loss.sizes()) : "undefined",
                    "\n  in: micro-batch ", microbatch, "\n  do: give one number, as loss.mean()");
  losses_[number] = loss.detach();
  if (!loss.requires_grad()) return;
  mine.start = {{torch::autograd::impl::gradient_edge(loss)},
                {at::full_like(losses_[number], rows_share(microbatch))}};
}

double PipelineRun::rows_share(int microbatch) const {
  if (pipeline_.options_.loss_scale == PipelineLossScale::none) return 1;
  std::int64_t rows = 0;
  for (const at::Tensor& target : targets_) rows += target.size(0);
  return static_cast<double>(targets_[static_cast<std::size_t>(microbatch)].size(0)) /
         static_cast<double>(rows);
}

void PipelineRun::complete_start(Pass& mine, const PipelineAction& action) {
  if (is_last(action.stage)) return;
  if (pipeline_.is_here(action.stage + 1))
    mine.start.gradients = std::exchange(pass(action.stage + 1, action.microbatch).input_gradients, {});
  for (at::Tensor& gradient : mine.start.gradients) gradient = wait_tensor(gradient);
}

void PipelineRun::run_backward_input(const PipelineAction& action) {
  Pass& mine = pass(action);
  if (mine.has_data_parallel_groups) return run_whole_backward(action);
  complete_start(mine, action);
  const Tensors inputs = std::exchange(mine.inputs, {});
  InputGradients first_half = run_input_backward(std::exchange(mine.start, {}), inputs);
  mine.parameters = std::move(first_half.parameters);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    if (action.stage == 0 || !inputs[i].requires_grad()) continue;
    const at::Tensor& gradient = first_half.gradients[i];
    mine.input_gradients.push_back(gradient.defined() ? gradient : at::zeros_like(inputs[i]));
  }
}

void PipelineRun::run_whole_backward(const PipelineAction& action) {
  Pass& mine = pass(action);
  complete_start(mine, action);
  const Tensors inputs = std::exchange(mine.inputs, {});
  run_backward(std::exchange(mine.start, {}));
  for (const at::Tensor& input : inputs) {
    if (action.stage == 0 || !input.requires_grad()) continue;
    const at::Tensor gradient = std::exchange(input.mutable_grad(), {});
    mine.input_gradients.push_back(gradient.defined() ? gradient : at::zeros_like(input));
  }
}

void PipelineRun::send_forward(const PipelineAction& action) {
  const Tensors outputs = std::exchange(pass(action).outputs, {});
  const int to = pipeline_.rank_of(action.stage + 1);
  const std::vector<TensorFacts> facts = facts_of(outputs);
  const auto [known, is_new] = facts_.outputs.try_emplace({action.stage, action.microbatch}, facts);
  if (is_new) messages_.send_facts(facts, to);
  TORCH_CHECK_VALUE(known->second == facts, "meshtorch: stage ", action.stage, " passes on ",
                    to_string(facts), " for micro-batch ", action.microbatch, ", and passed on ",
                    to_string(known->second),
                    " in the first step\n  do: give batches of one shape, or call forget_shapes() on all "
                    "ranks of the pipeline");
  messages_.send(outputs, to);
}

void PipelineRun::receive_forward(const PipelineAction& action) {
  const int from = pipeline_.rank_of(action.stage - 1);
  const std::pair<int, int> key{action.stage, action.microbatch};
  if (!facts_.inputs.contains(key)) facts_.inputs[key] = messages_.receive_facts(from);
  pass(action).inputs = messages_.receive(facts_.inputs[key], from);
}

void PipelineRun::send_backward(const PipelineAction& action) {
  messages_.send(std::exchange(pass(action).input_gradients, {}), pipeline_.rank_of(action.stage - 1));
}

void PipelineRun::receive_backward(const PipelineAction& action) {
  Pass& mine = pass(action);
  mine.start.gradients = messages_.receive(mine.outputs_with_gradients, pipeline_.rank_of(action.stage + 1));
}

PipelineResult PipelineRun::result() {
  PipelineResult result{.timeline = std::move(timeline_)};
  if (outputs_.empty()) return result;
  for (std::size_t i = 0; i < outputs_[0].size(); ++i) {
    Tensors parts;
    for (const Tensors& of_microbatch : outputs_) parts.push_back(of_microbatch[i]);
    result.outputs.push_back(parts[0].dim() == 0 ? at::stack(parts) : at::cat(parts));
  }
  if (!loss_) return result;
  for (int m = 0; m < pipeline_.microbatches_; ++m) {
    const at::Tensor scaled = at::mul(losses_[static_cast<std::size_t>(m)], rows_share(m));
    result.loss = m == 0 ? scaled : at::add(result.loss, scaled);
  }
  result.losses = std::move(losses_);
  return result;
}

}  // namespace meshtorch::internal
