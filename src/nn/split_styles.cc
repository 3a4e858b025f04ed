// The styles that say how a module's parameters lie: ColwiseParallel, RowwiseParallel, SequenceParallel,
// NoParallel.
#include "nn/split_styles.h"

#include "meshtorch/distribute_module.h"
#include "nn/hookable_module.h"

namespace meshtorch {
using namespace internal;
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

void apply_styled(const SplitStyle& style, torch::nn::Module& module, const DeviceMesh& mesh,
                  const StyleContext& context, const std::string& style_name) {
  const PartitionFn partition = partition_as(style.parameters, context.src_data_rank);
  const Edges& edges = style.edges;
  if (!is_hookable(module) && edges.need_no_hooks()) {
    distribute_module(module, mesh, partition);
    return;
  }
  hooks_of(module, context.module_name, style_name);
  distribute_module(
      module, mesh, partition,
      [edges](torch::nn::Module& m, Values& inputs, const DeviceMesh& on) {
        TORCH_CHECK_VALUE(inputs.size() > 0 && inputs.is_tensor(0), "meshtorch: expecting input of ",
                          class_of(m), " to be a torch.Tensor or DTensor");
        inputs[0] = edges.enter(inputs[0], on);
      },
      [edges](torch::nn::Module&, Values& outputs, const DeviceMesh& on) {
        outputs[0] = edges.leave(outputs[0], on);
      });
}

SplittableModule checked(torch::nn::Module& module, const std::string& style, const StyleContext& context) {
  const auto splittable = as_splittable(module);
  TORCH_CHECK_NOT_IMPLEMENTED(
      splittable, "meshtorch: ", style,
      " currently only support nn.Linear and nn.Embedding! (and nn.Conv1d to nn.Conv3d)\n  module: ",
      describe_module(module, context.module_name), "\n  do: apply it to the layers inside");
  return *splittable;
}

Layouts one(const std::optional<Placement>& given) { return given ? Layouts(*given) : Layouts(); }

}  // namespace

SplitStyle internal::styled(const ColwiseOptions& options, const SplittableModule& module) {
  const Partition partition = split_by_columns(module);
  return {partition.parameters,
          {options.input_layouts.value_or(Replicate()), partition.input, partition.input_size,
           partition.output, options.output_layouts.value_or(partition.output), options.use_local_output}};
}

SplitStyle internal::styled(const RowwiseOptions& options, const SplittableModule& module) {
  const Partition partition = split_by_rows(module);
  const Placement split = partition.input_size ? Shard(partition.input_size->dim) : Shard(-1);
  return {partition.parameters,
          {options.input_layouts.value_or(split), partition.input, partition.input_size, partition.output,
           options.output_layouts.value_or(Replicate()), options.use_local_output}};
}

SplitStyle internal::styled(const SequenceOptions& options) {
  const Placement split = Shard(options.sequence_dim);
  return {{}, {split, split, std::nullopt, std::nullopt, std::nullopt, options.use_local_output}};
}

SplitStyle internal::styled(const NoParallelOptions& options) {
  return {{},
          {options.input_layout.value_or(Replicate()), Replicate(), std::nullopt, Replicate(),
           options.output_layout.value_or(Replicate()), options.use_local_output}};
}

void ColwiseParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                            const StyleContext& context) const {
  apply_styled(styled(options_, checked(module, name(), context)), module, mesh, context, name());
}

void RowwiseParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                            const StyleContext& context) const {
  apply_styled(styled(options_, checked(module, name(), context)), module, mesh, context, name());
}

void SequenceParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh,
                             const StyleContext& context) const {
  apply_styled(styled(options_), module, mesh, context, name());
}

void NoParallel::apply(torch::nn::Module& module, const DeviceMesh& mesh, const StyleContext& context) const {
  apply_styled(styled(options_), module, mesh, context, name());
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> ColwiseParallel::attributes() const {
  return {{"input_layouts", one(options_.input_layouts)},
          {"output_layouts", one(options_.output_layouts)},
          {"use_local_output", options_.use_local_output}};
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> RowwiseParallel::attributes() const {
  return {{"input_layouts", one(options_.input_layouts)},
          {"output_layouts", one(options_.output_layouts)},
          {"use_local_output", options_.use_local_output}};
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> SequenceParallel::attributes() const {
  return {{"sequence_dim", options_.sequence_dim}, {"use_local_output", options_.use_local_output}};
}

std::vector<std::pair<std::string, ParallelStyle::Attribute>> NoParallel::attributes() const {
  return {{"input_layout", one(options_.input_layout)},
          {"output_layout", one(options_.output_layout)},
          {"use_local_output", options_.use_local_output}};
}

}  // namespace meshtorch
