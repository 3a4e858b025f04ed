// Llama as LibTorch modules for one device; parameters have the names of Hugging Face's checkpoints. Nothing
// here knows of ranks: see parallelize.h.
//
// Dims: B batch, S new positions, T all positions so far, D width, H heads of queries, K heads of keys and
// values, C width of a head, V vocabulary.
#pragma once

#include <meshtorch/nn.h>

#include <array>
#include <vector>

#include "config.h"
#include "rope.h"

namespace llama {

// What attention remembers of the positions before, one entry for each layer: T positions that count, with
// room for more after them.
struct KeysValues {
  torch::Tensor keys_BKTC, values_BKTC;
  std::int64_t length = 0;  // T
};
struct KvCache {
  std::vector<KeysValues> layers;
  std::int64_t length = 0;  // T
};

// What all layers have in common in one call.
struct Sight {
  Rotation rotation;
  torch::Tensor mask_B1ST;  // true: may look; undefined: up to itself
};

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const Config& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x_BSD, const Sight& sight, KeysValues* cache);
  static std::array<const char*, 3> argument_names() { return {"x_BSD", "sight", "cache"}; }

  std::int64_t head_dim;
  bool is_grouped;  // several heads of queries share one of keys
  meshtorch::nn::Linear q_proj, k_proj, v_proj, o_proj;
};
MESHTORCH_MODULE(Attention);

struct MlpImpl : torch::nn::Module {
  MlpImpl(const Config& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x_BSD);

  meshtorch::nn::Linear gate_proj, up_proj, down_proj;
};
MESHTORCH_MODULE(Mlp);

struct DecoderLayerImpl : torch::nn::Module {
  DecoderLayerImpl(const Config& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x_BSD, const Sight& sight, KeysValues* cache);

  meshtorch::nn::RMSNorm input_layernorm;
  Attention self_attn;
  meshtorch::nn::RMSNorm post_attention_layernorm;
  Mlp mlp;
};
MESHTORCH_MODULE(DecoderLayer);

// From token ids to the last layer's normed output.
struct DecoderImpl : torch::nn::Module {
  DecoderImpl(const Config& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& ids_BS, KvCache* cache, const torch::Tensor& pads_B);

  Config config;
  meshtorch::nn::Embedding embed_tokens;
  std::vector<DecoderLayer> layers;
  meshtorch::nn::RMSNorm norm;
};
MESHTORCH_MODULE(Decoder);

struct LlamaImpl : torch::nn::Module {
  // The parameters have shapes and no data: load a checkpoint, or call initialize().
  explicit LlamaImpl(const Config& config, torch::Dtype dtype = torch::kFloat);

  // Logits_BSV. A cache is read and grown; pads_B says how many ids at the left of each row are padding
  // (undefined: none).
  torch::Tensor forward(const torch::Tensor& ids_BS, KvCache* cache = nullptr,
                        const torch::Tensor& pads_B = {});
  // The last step of forward: `model(…)` gives the x_BSD of it.
  torch::Tensor logits(const torch::Tensor& x_BSD);

  Config config;
  Decoder model;
  meshtorch::nn::Linear lm_head = nullptr;  // none if the embedding's weight serves
};
MESHTORCH_MODULE(Llama);

// Gives every parameter memory for its data, of this rank's shard if it is distributed, and leaves it unset.
void allocate(torch::nn::Module& module, const torch::Device& device = torch::kCPU);

// Allocates and fills: matrices normal with the configuration's deviation, norms 1, biases 0.
void initialize(LlamaImpl& model, const torch::Device& device = torch::kCPU);

}  // namespace llama
