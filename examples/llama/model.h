// Llama as LibTorch modules for one device; parameters have the names of Hugging Face's checkpoints. Nothing
// here knows of ranks: see parallelize.h.
//
// Dims: B batch, S new positions, T all positions so far, D width, H heads of queries, K heads of keys and
// values, C width of a head, V vocabulary.
#pragma once

#include <meshtorch/nn.h>
#include <torch/types.h>

#include <array>
#include <vector>

#include "config.h"

namespace llama {

// Cosine and sine of each angle: B batch (or 1), S positions, C width of a head.
struct Rotation {
  torch::Tensor cos_B1SC, sin_B1SC;
};

// The rotation of these positions, of which the model has seen `length` in all.
Rotation rotation_of(const torch::Tensor& positions_BS, std::int64_t length, const Config& config,
                     torch::Dtype dtype);

// Turns each pair (x[i], x[i + C/2]).
torch::Tensor rotate(const torch::Tensor& x_BHSC, const Rotation& rotation);

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

// The heads of keys or values that a projection gives, each several times if there are more ranks than heads:
// then every rank has the one that its queries look at.
struct KeyHeadsImpl : torch::nn::Module {
  explicit KeyHeadsImpl(std::int64_t width) : head_dim(width) {}
  torch::Tensor forward(const torch::Tensor& y_BSD);

  std::int64_t head_dim;
  std::int64_t copies = 1;
};
MESHTORCH_MODULE(KeyHeads);

struct AttentionImpl : torch::nn::Module {
  AttentionImpl(const Config& config, torch::Dtype dtype);
  torch::Tensor forward(const torch::Tensor& x_BSD, const Sight& sight, KeysValues* cache);
  static std::array<const char*, 3> argument_names() { return {"x_BSD", "sight", "cache"}; }

  std::int64_t head_dim;
  bool is_grouped;  // several heads of queries share one of keys
  meshtorch::nn::Linear q_proj, k_proj, v_proj, o_proj;
  KeyHeads key_heads;
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
  torch::Tensor forward(const torch::Tensor& ids_BS, KvCache* cache, const torch::Tensor& pads_B,
                        const torch::Tensor& positions_BS = {});

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
  // (undefined: none); positions_BS where the ids stand in their text (undefined: one after the other).
  torch::Tensor forward(const torch::Tensor& ids_BS, KvCache* cache = nullptr,
                        const torch::Tensor& pads_B = {}, const torch::Tensor& positions_BS = {});
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
