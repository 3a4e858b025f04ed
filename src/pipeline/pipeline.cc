// Pipelines: what is checked before the first step, and the calls of users.
#include "meshtorch/pipeline.h"

#include <ATen/core/grad_mode.h>
#include <c10/util/Exception.h>

#include <algorithm>

#include "pipeline/pipeline_impl.h"
#include "pipeline/pipeline_run.h"

namespace meshtorch {
using namespace internal;
namespace {

PipelineTable forward_only(const PipelineTable& table) {
  PipelineTable result;
  for (const std::vector<PipelineAction>& row : table.rows) {
    std::vector<PipelineAction>& kept = result.rows.emplace_back();
    for (PipelineAction action : row) {
      if (action.kind != PipelineAction::Kind::forward) continue;
      action.overlaps_next = false;
      kept.push_back(action);
    }
  }
  return result;
}

const Group& group_of(const std::vector<PipelineStage>& stages) {
  TORCH_CHECK_VALUE(!stages.empty(),
                    "meshtorch: a pipeline got no stage on this rank\n  do: give the stages that this rank "
                    "has in the table");
  return stages[0].group();
}

std::string numbers_text(const std::vector<int>& numbers) {
  std::string text;
  for (const int number : numbers) text.append(text.empty() ? "" : ", ").append(std::to_string(number));
  return text.empty() ? "none" : text;
}

// The proof throws what has no torch.
PipelineProof proof_of(const PipelineTable& table) {
  try {
    return prove(table);
  } catch (const std::invalid_argument& error) {
    TORCH_CHECK_VALUE(false, error.what());
  }
}

}  // namespace

PipelineStage::PipelineStage(Forward forward, int index, int count, const Group& group)
    : forward_(std::move(forward)), index_(index), count_(count), group_(group) {
  TORCH_CHECK_VALUE(index >= 0 && index < count, "meshtorch: there is no stage ", index, " of ", count,
                    " stages\n  in: PipelineStage\n  do: give a number from 0 to ", count - 1);
}

PipelineImpl::PipelineImpl(std::vector<PipelineStage> stages, const PipelineTable& table, PipelineLoss loss,
                           PipelineOptions options)
    : group_(group_of(stages)), stages_(std::move(stages)), loss_(std::move(loss)), options_(options) {
  const PipelineProof proof = proof_of(table);
  rank_of_stage_ = proof.rank_of_stage;
  microbatches_ = proof.microbatches;
  trains_ = std::ranges::any_of(proof.peak_activations, [](int peak) { return peak > 0; });
  check_stages(static_cast<int>(table.rows.size()));
  training_.table = add_messages(table);
  inference_.table = add_messages(forward_only(table));
}

void PipelineImpl::check_stages(int ranks) const {
  TORCH_CHECK_VALUE(ranks == group_.size(), "meshtorch: the table of the pipeline has ", ranks,
                    " ranks, and its group has ", group_.size(), "\n  do: make the table for ", group_.size(),
                    " ranks");
  std::vector<int> given;
  for (const PipelineStage& stage : stages_) {
    TORCH_CHECK_VALUE(stage.group() == group_, "meshtorch: the stages ", stages_[0].index(), " and ",
                      stage.index(),
                      " of a pipeline are in different groups\n  do: give all of them one group");
    TORCH_CHECK_VALUE(stage.count() == stages(), "meshtorch: stage ", stage.index(), " is one of ",
                      stage.count(), ", and the table has ", stages(), " stages\n  do: make the table for ",
                      stage.count(), " stages");
    given.push_back(stage.index());
  }
  std::vector<int> wanted;
  for (int stage = 0; stage < stages(); ++stage) {
    if (is_here(stage)) wanted.push_back(stage);
  }
  std::ranges::sort(given);
  TORCH_CHECK_VALUE(given == wanted, "meshtorch: rank ", group_.rank(), " of the pipeline got the stages ",
                    numbers_text(given), ", and has the stages ", numbers_text(wanted),
                    " in the table\n  do: give it the stages of the table");
}

const PipelineStage& PipelineImpl::stage(int index) const {
  return *std::ranges::find(stages_, index, &PipelineStage::index);
}

PipelineResult PipelineImpl::step(const std::vector<at::Tensor>& inputs, const at::Tensor& target) {
  TORCH_CHECK_VALUE(trains_ && loss_, "meshtorch: step of a pipeline whose ",
                    trains_ ? "loss was not given" : "table has no backward",
                    "\n  do: ", trains_ ? "give it a loss" : "give it a table with backward",
                    ", or call forward(inputs)");
  return PipelineRun(*this, training_.table, training_.facts, loss_).run(inputs, target);
}

std::vector<at::Tensor> PipelineImpl::forward(const std::vector<at::Tensor>& inputs) {
  const at::NoGradGuard no_grad;
  return PipelineRun(*this, inference_.table, inference_.facts, {}).run(inputs, {}).outputs;
}

void PipelineImpl::forget_shapes() {
  training_.facts = {};
  inference_.facts = {};
}

Pipeline::Pipeline(std::vector<PipelineStage> stages, const PipelineTable& table, PipelineLoss loss,
                   const PipelineOptions& options)
    : impl_(std::make_shared<PipelineImpl>(std::move(stages), table, std::move(loss), options)) {}

PipelineResult Pipeline::step(const std::vector<at::Tensor>& inputs, const at::Tensor& target) {
  return impl_->step(inputs, target);
}
std::vector<at::Tensor> Pipeline::forward(const std::vector<at::Tensor>& inputs) {
  return impl_->forward(inputs);
}
void Pipeline::forget_shapes() { impl_->forget_shapes(); }
const PipelineTable& Pipeline::table() const { return impl_->table(); }

}  // namespace meshtorch
