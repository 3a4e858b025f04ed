// Pipeline parallelism: a model cut into stages, one or more on each rank of a group, that work on different
// micro-batches at the same time. Which rank does what when is a table (pipeline_schedule.h).
//
//   auto stages = split(model, 4);                                         // a torch::nn::Sequential
//   PipelineStage stage(stages[rank], rank, 4, mesh["pp"]);
//   Pipeline pipeline({stage}, make_pipeline_table("1F1B", {.ranks = 4, .microbatches = 8}), loss);
//   PipelineResult result = pipeline.step({x}, target);                    // on every rank of the group
//   optimizer.step();
#pragma once

#include <ATen/core/Tensor.h>

#include <concepts>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/group.h"
#include "meshtorch/pipeline_schedule.h"

namespace torch::nn {
class Sequential;
}

namespace meshtorch {

namespace internal {
class PipelineImpl;
}  // namespace internal

// A holder of a module from one tensor to one tensor. See the example at the top.
template <class Module>
concept StageModule =
    std::convertible_to<decltype(std::declval<Module&>()->forward(std::declval<at::Tensor>())), at::Tensor>;

// One stage of a model, on this rank. See the example at the top.
class MESHTORCH_API PipelineStage {
 public:
  // From the tensors of the stage before, or the inputs of the step, to those of the stage after, or what the
  // loss takes. Tensors that require gradients get them.
  using Forward = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

  // Stage `index` of `count`, on this rank of the group. Throws ValueError if there is no such stage.
  PipelineStage(Forward forward, int index, int count, const Group& group);
  template <StageModule Module>
  PipelineStage(Module module, int index, int count, const Group& group)
      : PipelineStage(
            [module](const std::vector<at::Tensor>& inputs) mutable {
              return std::vector<at::Tensor>{module->forward(at::Tensor(inputs.at(0)))};
            },
            index, count, group) {}

  int index() const { return index_; }
  int count() const { return count_; }
  const Group& group() const { return group_; }
  const Forward& forward() const { return forward_; }

 private:
  Forward forward_;
  int index_;
  int count_;
  Group group_;
};

// The children of a Sequential in `stages` parts, the first ones larger where they cannot be equal; or in
// parts that begin at the given children. The parts share the children and keep their names.
MESHTORCH_API std::vector<torch::nn::Sequential> split(const torch::nn::Sequential& module, int stages);
MESHTORCH_API std::vector<torch::nn::Sequential> split(const torch::nn::Sequential& module,
                                                       const std::vector<std::string>& first_children);

// The loss of one micro-batch, from the first output of the last stage.
using PipelineLoss = std::function<at::Tensor(const at::Tensor& output, const at::Tensor& target)>;

// What the losses of micro-batches are multiplied by before they are added to the loss of the step. Only the
// loss is scaled, so that gradients of several steps can be accumulated.
enum class PipelineLossScale : std::uint8_t {
  share_of_rows,  // for a loss that is a mean over the rows of a micro-batch: the step's is that of the batch
  none,           // for a loss that is a sum, or that divides by a number of the whole batch itself
};

// How a pipeline runs its table.
struct PipelineOptions {
  PipelineLossScale loss_scale = PipelineLossScale::share_of_rows;
  bool keeps_outputs =
      true;  // if not, the outputs of step() are empty: a micro-batch's are freed when it has its loss
};

// What a step gives to each rank.
struct PipelineResult {
  // On the rank of the last stage; undefined and empty elsewhere.
  at::Tensor loss = {};
  std::vector<at::Tensor> losses = {};   // of the micro-batches, not scaled
  std::vector<at::Tensor> outputs = {};  // of the whole batch
  // What this rank did, in seconds from its begin of the step.
  std::vector<PlannedAction> timeline = {};
};

// The stages of this rank and the table by which all ranks run theirs. See the example at the top.
class MESHTORCH_API Pipeline {
 public:
  // The stages that this rank has in the table. The table is proved first. Without a loss, only forward() can
  // be called. Throws ValueError if the stages are not those of this rank.
  Pipeline(std::vector<PipelineStage> stages, const PipelineTable& table, PipelineLoss loss = {},
           const PipelineOptions& options = {});

  // Runs the table on a batch and adds its gradients to those of the parameters. Every rank of the group
  // calls it. The inputs count on the rank of stage 0, the target on that of the last stage. Both are split
  // along dim 0 into micro-batches, the first ones larger where they cannot be equal.
  PipelineResult step(const std::vector<at::Tensor>& inputs, const at::Tensor& target);
  // The outputs of a batch without gradients, on the rank of the last stage.
  std::vector<at::Tensor> forward(const std::vector<at::Tensor>& inputs);

  // The first step sends the types and sizes of what stages pass on; later ones must have the same. After
  // this, the next step sends them again. Every rank of the group calls it.
  void forget_shapes();

  // As it runs: with messages.
  const PipelineTable& table() const;

 private:
  std::shared_ptr<internal::PipelineImpl> impl_;
};

}  // namespace meshtorch
