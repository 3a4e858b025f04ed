// The plan of tensor and sequence parallelism, and data parallelism on the other axis.
#include "parallelize.h"

#include <meshtorch/distribute_module.h>
#include <meshtorch/fully_shard.h>

namespace llama {
namespace {

namespace mt = meshtorch;

// Data parallel: the parameters, split over tp so far, are replicated over the rows of the mesh.
void replicate_over_dp(torch::nn::Module& model, const mt::DeviceMesh& mesh) {
  for (const torch::Tensor& parameter : model.parameters()) {
    const mt::DTensor split(parameter.detach());
    mt::replace_data(
        parameter, mt::DTensor::from_local(split.to_local(), mesh, {mt::Replicate(), split.placements()[0]},
                                           {.shape = split.sizes().vec(), .stride = split.strides().vec()}));
  }
}

// Each layer is gathered before it runs; embedding, last norm and output layer are one more group.
void shard_over_dp(Llama model, const mt::DeviceMesh& mesh) {
  const mt::DeviceMesh data = mesh[{"dp_replicate", "dp_shard"}];
  const mt::FullyShardOptions options{.src_data_rank = std::nullopt};
  for (DecoderLayer& layer : model->model->layers) mt::fully_shard(*layer, data, options);
  mt::fully_shard(*model, data, options);
}

}  // namespace

mt::DeviceMesh make_sharding_mesh(std::int64_t dp_replicate, std::int64_t dp_shard, std::int64_t tp,
                                  c10::DeviceType device) {
  return mt::init_device_mesh(device, {dp_replicate, dp_shard, tp}, {"dp_replicate", "dp_shard", "tp"});
}

mt::DeviceMesh make_mesh(std::int64_t dp, std::int64_t tp, c10::DeviceType device) {
  return mt::init_device_mesh(device, {dp, tp}, {"dp", "tp"});
}

mt::ParallelizePlan plan_of(const Config& config, const ParallelOptions& options) {
  const mt::Placement between = options.sequence_parallel ? mt::Shard(1) : mt::Replicate();
  const mt::Style norm = options.sequence_parallel ? mt::Style(mt::SequenceParallel())
                                                   : mt::Style(mt::NoParallel({.use_local_output = false}));
  const mt::ColwiseParallel columns({.use_local_output = false});
  const mt::RowwiseParallel rows({.output_layouts = between, .use_local_output = false});
  std::vector<mt::ParallelizePlan::Entry> plan{
      {"model.embed_tokens",
       mt::RowwiseParallel(
           {.input_layouts = mt::Replicate(), .output_layouts = between, .use_local_output = false})},
      {"model.layers.*.*_layernorm", norm},
      {"model.layers.*.self_attn",
       mt::PrepareModuleInput({.input_kwarg_layouts = {{"x_BSD", between}},
                               .desired_input_kwarg_layouts = {{"x_BSD", mt::Replicate()}}})},
      {"model.layers.*.self_attn.[qkv]_proj", columns},
      {"model.layers.*.self_attn.o_proj", rows},
      {"model.layers.*.mlp",
       mt::PrepareModuleInput({.input_layouts = between, .desired_input_layouts = mt::Replicate()})},
      {"model.layers.*.mlp.gate_proj", columns},
      {"model.layers.*.mlp.up_proj", columns},
      {"model.layers.*.mlp.down_proj", rows},
      {"model.norm", norm},
      {"model", mt::PrepareModuleOutput({.output_layouts = between,
                                         .desired_output_layouts = mt::Replicate(),
                                         .use_local_output = false})}};
  if (!config.tie_word_embeddings) plan.emplace_back("lm_head", columns);
  return mt::ParallelizePlan(std::move(plan));
}

void parallelize(Llama model, const mt::DeviceMesh& mesh, const ParallelOptions& options) {
  check_heads(model->config, mesh.size("tp"));
  mt::parallelize_module(*model, mesh, plan_of(model->config, options), {.src_data_rank = std::nullopt});
  if (mesh.ndim() == 3) {
    shard_over_dp(model, mesh);
  } else {
    replicate_over_dp(*model, mesh);
  }
}

mt::DTensor distribute_batch(const torch::Tensor& batch, const mt::DeviceMesh& mesh) {
  mt::Placements placements(static_cast<std::size_t>(mesh.ndim()), mt::Shard(0));
  placements.back() = mt::Replicate();
  return mt::distribute_tensor(batch, mesh, placements, {.src_data_rank = std::nullopt});
}

}  // namespace llama
