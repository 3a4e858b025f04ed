// The styles that say how a module's parameters lie: ColwiseParallel, RowwiseParallel, SequenceParallel,
// NoParallel.
#include "meshtorch/distribute_module.h"
#include "meshtorch/parallel_style.h"
#include "nn/edges.h"
#include "nn/hookable_module.h"
#include "nn/partition.h"

namespace meshtorch {
namespace {

PartitionFn partition_as(std::map<std::string, Placement> parameters, std::optional<int> source) {
  return [parameters = std::move(parameters), source](const std::string&, torch::nn::Module& module,
                                                      const DeviceMesh& mesh) {
    for (const auto& parameter : module.named_parameters(/*recurse=*/false)) {
      const at::Tensor& tensor = parameter.value();
      if (!tensor.defined() || is_dtensor(tensor)) continue;
      const auto found = parameters.find(parameter.key());
      const Placement placement = found != parameters.end() ? found->second : Replicate();
      replace_data(tensor, distribute_tensor(tensor.detach(), mesh, {placement}, {.src_data_rank = source}));
    }
  };
}

// What a style does at the edges of its module.
struct Edges {
  Placement input;
  Placement desired_input;
  std::optional<KnownSize> input_size;
  Placement natural_output;
  Placement output;
  bool use_local_output;

  // Whether a module without hooks does as well, given distributed inputs.
  bool need_no_hooks() const {
    return input == desired_input && output == natural_output && !use_local_output;
  }
};

void distribute(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context,
                const std::string& style, const PartitionFn& partition, const Edges& edges) {
  if (!is_hookable(module) && edges.need_no_hooks()) {
    distribute_module(module, mesh, partition);
    return;
  }
  hooks_of(module, context.module_name, style);
  distribute_module(
      module, mesh, partition,
      [edges](torch::nn::Module&, Values& inputs, const DeviceMesh& m) {
        inputs[0] = moved_to(annotated(inputs[0], m, edges.input, edges.input_size), m, edges.desired_input);
      },
      [edges](torch::nn::Module&, Values& outputs, const DeviceMesh& m) {
        outputs[0] = shard_if(edges.use_local_output, moved_to(outputs[0], m, edges.output));
      });
}

[[noreturn]] void refuse(const std::string& style, const torch::nn::Module& module,
                         const StyleContext& context) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      false, "meshtorch: ", style,
      " currently only support nn.Linear and nn.Embedding! (and nn.Conv1d to nn.Conv3d)\n  module: ",
      describe_module(module, context.module_name), "\n  do: apply it to the layers inside");
}

Layouts one(const std::optional<Placement>& given) { return given ? Layouts(*given) : Layouts(); }

}  // namespace

void ColwiseParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                            const StyleContext& context) const {
  const auto partition = split_by_columns(module);
  if (!partition) refuse(name(), module, context);
  distribute(
      module, mesh, context, name(), partition_as(partition->parameters, context.src_data_rank),
      {options_.input_layouts.value_or(Replicate()), partition->input, partition->input_size,
       partition->output, options_.output_layouts.value_or(partition->output), options_.use_local_output});
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> ColwiseParallel::attributes() const {
  return {{"input_layouts", one(options_.input_layouts)},
          {"output_layouts", one(options_.output_layouts)},
          {"use_local_output", options_.use_local_output}};
}

void RowwiseParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                            const StyleContext& context) const {
  const auto partition = split_by_rows(module);
  if (!partition) refuse(name(), module, context);
  const Placement split = partition->input_size ? Shard(partition->input_size->dim) : Shard(-1);
  distribute(module, mesh, context, name(), partition_as(partition->parameters, context.src_data_rank),
             {options_.input_layouts.value_or(split), partition->input, partition->input_size,
              partition->output, options_.output_layouts.value_or(Replicate()), options_.use_local_output});
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> RowwiseParallel::attributes() const {
  return {{"input_layouts", one(options_.input_layouts)},
          {"output_layouts", one(options_.output_layouts)},
          {"use_local_output", options_.use_local_output}};
}

void SequenceParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                             const StyleContext& context) const {
  const PartitionFn replicate = partition_as({}, context.src_data_rank);
  const Placement split = Shard(options_.sequence_dim);
  const bool use_local = options_.use_local_output;
  if (!is_hookable(module) && !use_local) {
    distribute_module(module, mesh, replicate);
    return;
  }
  hooks_of(module, context.module_name, name());
  distribute_module(
      module, mesh, replicate,
      [split](torch::nn::Module& m, Values& inputs, const DeviceMesh& on) {
        TORCH_CHECK_VALUE(inputs.size() > 0 && inputs.is_tensor(0), "meshtorch: expecting input of ",
                          class_of(m), " to be a torch.Tensor or DTensor");
        inputs[0] = moved_to(annotated(inputs[0], on, split), on, split);
      },
      [use_local](torch::nn::Module&, Values& outputs, const DeviceMesh&) {
        if (use_local) outputs[0] = DTensor(outputs[0]).to_local();
      });
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> SequenceParallel::attributes() const {
  return {{"sequence_dim", options_.sequence_dim}, {"use_local_output", options_.use_local_output}};
}

void NoParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const {
  distribute(module, mesh, context, name(), partition_as({}, context.src_data_rank),
             {options_.input_layout.value_or(Replicate()), Replicate(), std::nullopt, Replicate(),
              options_.output_layout.value_or(Replicate()), options_.use_local_output});
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> NoParallel::attributes() const {
  return {{"input_layout", one(options_.input_layout)},
          {"output_layout", one(options_.output_layout)},
          {"use_local_output", options_.use_local_output}};
}

}  // namespace meshtorch
