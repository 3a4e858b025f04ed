// Loading: made without data, split, and then filled shard by shard, so that a rank never holds more than its
// part.
#include "loading.h"

#include <meshtorch/safetensors.h>

#include <map>

namespace llama {
namespace {

namespace mt = meshtorch;

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
