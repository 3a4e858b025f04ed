// The plan of tensor and sequence parallelism, data and context parallelism on the other axes, and weights
// from files, of which each rank reads its shards.
#include "parallelize.h"

#include <meshtorch/distribute_module.h>
#include <meshtorch/fully_shard.h>
#include <meshtorch/safetensors.h>
#include <torch/torch.h>

#include <algorithm>
#include <map>

namespace llama {
namespace {

namespace mt = meshtorch;

// The parameters, split over tp so far, are replicated over the other axes of the mesh, of which tp is the
// last.
void replicate_over(torch::nn::Module& model, const mt::DeviceMesh& mesh) {
  for (const torch::Tensor& parameter : model.parameters()) {
    const mt::DTensor split(parameter.detach());
    mt::Placements placements(static_cast<std::size_t>(mesh.ndim()));
    placements.back() = split.placements()[0];
    mt::replace_data(
        parameter, mt::DTensor::from_local(split.to_local(), mesh, placements,
                                           {.shape = split.sizes().vec(), .stride = split.strides().vec()}));
  }
}

// How often each head of keys stands beside itself, so that all ranks of tp have one; 1 if the ranks do not
// divide so.
std::int64_t key_copies(const Config& config, std::int64_t tp) {
  const bool divides = tp % config.num_kv_heads == 0 && config.num_heads % tp == 0;
  return config.num_kv_heads < tp && divides ? tp / config.num_kv_heads : 1;
}

// Rows over all axes of dp, and the sequence over cp as that says.
mt::DTensor distributed(const torch::Tensor& batch_BS, const mt::DeviceMesh& mesh,
                        const mt::Placement& along_cp) {
  mt::Placements placements(static_cast<std::size_t>(mesh.ndim()), mt::Shard(0));
  placements.back() = mt::Replicate();
  if (has_axis(mesh, "cp")) placements[static_cast<std::size_t>(mesh.axis("cp"))] = along_cp;
  return mt::distribute_tensor(batch_BS, mesh, placements, {.src_data_rank = std::nullopt});
}

// Each layer is gathered before it runs; embedding, last norm and output layer are one more group.
void shard_over_dp(Llama model, const mt::DeviceMesh& mesh) {
  const mt::DeviceMesh data = mesh[{"dp_replicate", "dp_shard"}];
  const mt::FullyShardOptions options{.src_data_rank = std::nullopt};
  for (DecoderLayer& layer : model->model->layers) mt::fully_shard(*layer, data, options);
  mt::fully_shard(*model, data, options);
}

}  // namespace

std::string MeshShape::to_string() const {
  std::string text = "dp " + std::to_string(data());
  if (dp_shard > 0)
    text += " (replicate " + std::to_string(dp_replicate) + " x shard " + std::to_string(dp_shard) + ")";
  if (cp > 1) text += " x cp " + std::to_string(cp);
  return text + " x tp " + std::to_string(tp);
}

mt::DeviceMesh make_mesh(const MeshShape& shape, c10::DeviceType device) {
  std::vector<std::int64_t> sizes;
  mt::DeviceMesh::Names names;
  const auto add = [&](const char* name, std::int64_t size) {
    names.emplace_back(name);
    sizes.push_back(size);
  };
  if (shape.dp_shard > 0) {
    add("dp_replicate", shape.dp_replicate);
    add("dp_shard", shape.dp_shard);
  } else {
    add("dp", shape.dp);
  }
  if (shape.cp > 1) add("cp", shape.cp);
  add("tp", shape.tp);
  return mt::init_device_mesh(device, sizes, names);
}

bool has_axis(const mt::DeviceMesh& mesh, const std::string& name) {
  return std::ranges::find(mesh.names(), name) != mesh.names().end();
}

mt::ParallelizePlan plan_of(const Config& config, std::int64_t tp, const ParallelOptions& options) {
  const mt::Placement between = options.sequence_parallel ? mt::Shard(1) : mt::Replicate();
  const mt::Style norm = options.sequence_parallel ? mt::Style(mt::SequenceParallel())
                                                   : mt::Style(mt::NoParallel({.use_local_output = false}));
  const mt::ColwiseParallel columns({.use_local_output = false});
  // Fewer heads of keys than ranks: each is computed once, in parts, and then stands on several ranks.
  const mt::ColwiseParallel whole_columns({.output_layouts = mt::Replicate(), .use_local_output = false});
  const bool keys_are_copied = config.num_kv_heads < tp;
  const mt::RowwiseParallel rows({.output_layouts = between, .use_local_output = false});
  std::vector<mt::ParallelizePlan::Entry> plan{
      {"model.embed_tokens",
       mt::RowwiseParallel(
           {.input_layouts = mt::Replicate(), .output_layouts = between, .use_local_output = false})},
      {"model.layers.*.*_layernorm", norm},
      {"model.layers.*.self_attn",
       mt::PrepareModuleInput({.input_kwarg_layouts = {{"x_BSD", between}},
                               .desired_input_kwarg_layouts = {{"x_BSD", mt::Replicate()}}})},
      {"model.layers.*.self_attn.q_proj", columns},
      {"model.layers.*.self_attn.[kv]_proj", keys_are_copied ? whole_columns : columns},
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
  if (key_copies(config, tp) > 1) {
    plan.emplace_back("model.layers.*.self_attn.key_heads",
                      mt::PrepareModuleOutput({.output_layouts = mt::Replicate(),
                                               .desired_output_layouts = mt::Shard(1),
                                               .use_local_output = false}));
  }
  if (!config.tie_word_embeddings) plan.emplace_back("lm_head", columns);
  return mt::ParallelizePlan(std::move(plan));
}

void parallelize(Llama model, const mt::DeviceMesh& mesh, const ParallelOptions& options) {
  const std::int64_t tp = mesh.size("tp");
  for (DecoderLayer& layer : model->model->layers)
    layer->self_attn->key_heads->copies = key_copies(model->config, tp);
  mt::parallelize_module(*model, mesh, plan_of(model->config, tp, options), {.src_data_rank = std::nullopt});
  if (has_axis(mesh, "dp_shard")) {
    if (has_axis(mesh, "cp")) replicate_over(*model, mesh[{"cp", "tp"}]);
    shard_over_dp(model, mesh);
  } else {
    replicate_over(*model, mesh);
  }
}

mt::DTensor distribute_batch(const torch::Tensor& batch_BS, const mt::DeviceMesh& mesh) {
  return distributed(batch_BS, mesh, batch_BS.size(1) > 1 ? mt::Shard(1) : mt::Replicate());
}

TrainingBatch::TrainingBatch(const torch::Tensor& ids, const torch::Tensor& targets,
                             const mt::DeviceMesh& mesh)
    : ids_BS(distributed(ids, mesh, mt::Replicate())),
      targets_BS(distributed(targets, mesh, mt::Replicate())) {
  if (!has_axis(mesh, "cp")) return;
  const std::int64_t length = ids.size(1);
  positions_BS = mt::distribute_tensor(torch::arange(length, ids.options()).unsqueeze(0), mesh,
                                       mt::Placements(static_cast<std::size_t>(mesh.ndim())),
                                       {.src_data_rank = std::nullopt});
  const std::vector<torch::Tensor> buffers{ids_BS, targets_BS, positions_BS};
  order_.emplace(mesh["cp"], buffers, std::vector<std::int64_t>{1, 1, 1},
                 mt::ContextParallelOptions{.load_balance = length % (2 * mesh.size("cp")) == 0,
                                            .no_restore_buffers = buffers});
}

namespace {

// Tensors that checkpoints have and the model computes or shares.
bool is_redundant(const std::string& name, const Config& config) {
  return name.ends_with("rotary_emb.inv_freq") || (config.tie_word_embeddings && name == "lm_head.weight");
}

}  // namespace

torch::Dtype dtype_of(const std::string& name) {
  static const std::map<std::string, torch::Dtype> kTypes{{"float32", torch::kFloat},
                                                          {"float64", torch::kDouble},
                                                          {"bfloat16", torch::kBFloat16},
                                                          {"float16", torch::kHalf}};
  const auto found = kTypes.find(name);
  TORCH_CHECK_VALUE(found != kTypes.end(), "meshtorch-llama: \"", name,
                    "\" is no type of weights\n  where: --dtype or \"dtype\" in config.json\n"
                    "  do: use float32, float64, bfloat16 or float16");
  return found->second;
}

void load_weights(LlamaImpl& model, const std::filesystem::path& path) {
  const mt::safetensors::Files files(path.string());
  const auto parameters = model.named_parameters();
  for (const std::string& name : parameters.keys()) {
    TORCH_CHECK_VALUE(files.find(name) != nullptr, "meshtorch-llama: the checkpoint lacks the tensor \"",
                      name, "\"\n  in: ", path.string(),
                      "\n  do: fetch the model again, and check that config.json belongs to it");
  }
  for (const std::string& name : files.names()) {
    TORCH_CHECK_VALUE(parameters.contains(name) || is_redundant(name, model.config),
                      "meshtorch-llama: the model has no tensor \"", name, "\"\n  in: ", files.at(name).file,
                      "\n  do: check that config.json belongs to these weights (attention_bias, mlp_bias, "
                      "num_hidden_layers, tie_word_embeddings)");
  }
  mt::safetensors::load_parameters(model, files, {.strict = false});
}

Llama load_model(const std::filesystem::path& directory, const mt::DeviceMesh& mesh, torch::Dtype dtype,
                 const ParallelOptions& options) {
  Llama model(Config::from_path(directory), dtype);
  parallelize(model, mesh, options);
  load_weights(*model, directory);
  return model;
}

}  // namespace llama
