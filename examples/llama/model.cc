// The rotary embedding, and the layers of Llama in the order in which data passes them from the bottom to the
// top.
#include "model.h"

#include <ATen/ATen.h>
#include <meshtorch/meta_device.h>
#include <torch/torch.h>

#include <algorithm>
#include <cmath>
#include <numbers>
#include <utility>

namespace llama {
namespace {

// Long wavelengths are stretched, short ones kept, those between blended.
torch::Tensor llama3_scaled(const torch::Tensor& frequencies, const RopeConfig& rope) {
  const auto original = static_cast<double>(rope.original_max_positions);
  const torch::Tensor wavelength = 2 * std::numbers::pi / frequencies;
  const torch::Tensor kept =
      ((original / wavelength - rope.low_freq_factor) / (rope.high_freq_factor - rope.low_freq_factor))
          .clamp(0, 1);
  return (1 - kept) * frequencies / rope.factor + kept * frequencies;
}

// "dynamic": beyond the length it was trained on, the base grows with the length.
double grown_theta(const Config& config, std::int64_t length) {
  const RopeConfig& rope = config.rope;
  const std::int64_t trained =
      rope.original_max_positions > 0 ? rope.original_max_positions : config.max_positions;
  if (length <= trained) return rope.theta;
  const auto ratio = static_cast<double>(length) / static_cast<double>(trained);
  const auto dim = static_cast<double>(config.head_dim);
  return rope.theta * std::pow(rope.factor * ratio - (rope.factor - 1), dim / (dim - 2));
}

// One frequency for each pair of a head.
torch::Tensor frequencies_of(const Config& config, std::int64_t length, const torch::Device& device) {
  const RopeConfig& rope = config.rope;
  const double theta = rope.type == "dynamic" ? grown_theta(config, length) : rope.theta;
  const auto options = torch::TensorOptions(torch::kFloat).device(device);
  const torch::Tensor exponents =
      at::arange(0, config.head_dim, 2, options) / static_cast<double>(config.head_dim);
  const torch::Tensor frequencies = 1 / at::pow(theta, exponents);
  if (rope.type == "linear") return frequencies / rope.factor;
  if (rope.type == "llama3") return llama3_scaled(frequencies, rope);
  return frequencies;
}

}  // namespace

Rotation rotation_of(const torch::Tensor& positions_BS, std::int64_t length, const Config& config,
                     torch::Dtype dtype) {
  const torch::Tensor frequencies = frequencies_of(config, length, positions_BS.device());
  const torch::Tensor half_B1S = positions_BS.to(torch::kFloat).unsqueeze(1).unsqueeze(-1) * frequencies;
  const torch::Tensor angles_B1SC = at::cat({half_B1S, half_B1S}, -1);
  return {angles_B1SC.cos().to(dtype), angles_B1SC.sin().to(dtype)};
}

torch::Tensor rotate(const torch::Tensor& x_BHSC, const Rotation& rotation) {
  const std::vector<torch::Tensor> halves = x_BHSC.chunk(2, -1);
  return x_BHSC * rotation.cos_B1SC + at::cat({-halves[1], halves[0]}, -1) * rotation.sin_B1SC;
}

namespace {

namespace mt = meshtorch;

// Layers are made on the meta device, so that a model of any size is made at once and costs no memory.
mt::nn::Linear linear(std::int64_t in, std::int64_t out, bool bias, torch::Dtype dtype) {
  const mt::on_meta_device shapes_only;
  mt::nn::Linear layer(torch::nn::LinearOptions(in, out).bias(bias));
  layer->to(dtype);
  return layer;
}

mt::nn::Embedding embedding(std::int64_t count, std::int64_t width, torch::Dtype dtype) {
  const mt::on_meta_device shapes_only;
  mt::nn::Embedding layer(torch::nn::EmbeddingOptions(count, width));
  layer->to(dtype);
  return layer;
}

mt::nn::RMSNorm rms_norm(const Config& config, torch::Dtype dtype) {
  const mt::on_meta_device shapes_only;
  mt::nn::RMSNorm layer(mt::nn::RMSNormOptions(config.hidden_size).set_eps(config.rms_norm_eps));
  layer->to(dtype);
  return layer;
}

// Position t may be seen from position s of row b unless it comes later or is padding; everyone sees itself,
// so that no row of the attention is empty.
torch::Tensor visible(const torch::Tensor& pads_B, std::int64_t past, std::int64_t length) {
  const auto options = torch::TensorOptions(torch::kLong).device(pads_B.device());
  const torch::Tensor to_T = torch::arange(length, options);
  const torch::Tensor from_S1 = torch::arange(past, length, options).unsqueeze(-1);
  const torch::Tensor is_token_B11T = (to_T >= pads_B.unsqueeze(-1)).unsqueeze(1).unsqueeze(1);
  return (is_token_B11T & (to_T <= from_S1)) | (to_T == from_S1);
}

Sight sight_of(const torch::Tensor& ids_BS, const KvCache* cache, const torch::Tensor& pads_B,
               torch::Tensor positions_BS, const Config& config, torch::Dtype dtype) {
  const std::int64_t past = cache != nullptr ? cache->length : 0;
  const std::int64_t length = past + ids_BS.size(1);
  const auto options = torch::TensorOptions(torch::kLong).device(ids_BS.device());
  if (!positions_BS.defined()) positions_BS = torch::arange(past, length, options).unsqueeze(0);
  Sight sight;
  if (pads_B.defined()) {
    positions_BS = (positions_BS - pads_B.unsqueeze(-1)).clamp_min(0);
    sight.mask_B1ST = visible(pads_B, past, length);
  } else if (past > 0 && ids_BS.size(1) > 1) {
    sight.mask_B1ST = visible(torch::zeros({1}, options), past, length);
  }
  sight.rotation = rotation_of(positions_BS, length, config, dtype);
  return sight;
}

// Writes new positions after the `past` ones in a room, and gives all of them. The room doubles when it is
// full, so that a position is copied once or twice however long the text becomes.
torch::Tensor appended(torch::Tensor& room_BKTC, std::int64_t past, const torch::Tensor& new_BKSC) {
  TORCH_CHECK_VALUE(!torch::GradMode::is_enabled() || !new_BKSC.requires_grad(),
                    "llama: a cache is written in place, which gradients do not survive\n  do: give a cache "
                    "only under torch::NoGradGuard");
  const std::int64_t length = past + new_BKSC.size(2);
  if (!room_BKTC.defined()) return room_BKTC = new_BKSC;
  if (room_BKTC.size(2) < length) {
    const std::int64_t room = std::max(length, 2 * past) - past;
    room_BKTC = torch::constant_pad_nd(room_BKTC.narrow(2, 0, past), {0, 0, 0, room});
  }
  room_BKTC.narrow(2, past, new_BKSC.size(2)).copy_(new_BKSC);
  return room_BKTC.narrow(2, 0, length);
}

}  // namespace

torch::Tensor KeyHeadsImpl::forward(const torch::Tensor& y_BSD) {
  const torch::Tensor y_BKSC = y_BSD.view({y_BSD.size(0), y_BSD.size(1), -1, head_dim}).transpose(1, 2);
  return copies == 1 ? y_BKSC : y_BKSC.repeat_interleave(copies, 1);
}

AttentionImpl::AttentionImpl(const Config& c, torch::Dtype dtype)
    : head_dim(c.head_dim),
      is_grouped(c.num_heads != c.num_kv_heads),
      q_proj(linear(c.hidden_size, c.num_heads * c.head_dim, c.attention_bias, dtype)),
      k_proj(linear(c.hidden_size, c.num_kv_heads * c.head_dim, c.attention_bias, dtype)),
      v_proj(linear(c.hidden_size, c.num_kv_heads * c.head_dim, c.attention_bias, dtype)),
      o_proj(linear(c.num_heads * c.head_dim, c.hidden_size, c.attention_bias, dtype)),
      key_heads(c.head_dim) {
  register_module("q_proj", q_proj);
  register_module("k_proj", k_proj);
  register_module("v_proj", v_proj);
  register_module("o_proj", o_proj);
  register_module("key_heads", key_heads);
}

torch::Tensor AttentionImpl::forward(const torch::Tensor& x_BSD, const Sight& sight, KeysValues* cache) {
  const torch::Tensor q_BHSC = rotate(
      q_proj(x_BSD).view({x_BSD.size(0), x_BSD.size(1), -1, head_dim}).transpose(1, 2), sight.rotation);
  torch::Tensor k_BKTC = rotate(key_heads(k_proj(x_BSD)), sight.rotation);
  torch::Tensor v_BKTC = key_heads(v_proj(x_BSD));
  if (cache != nullptr) {
    const std::int64_t past = std::exchange(cache->length, cache->length + x_BSD.size(1));
    k_BKTC = appended(cache->keys_BKTC, past, k_BKTC);
    v_BKTC = appended(cache->values_BKTC, past, v_BKTC);
  }
  // One new position sees all of the past, so that only several need to be told what comes later.
  const bool is_causal = !sight.mask_B1ST.defined() && x_BSD.size(1) > 1;
  const auto mask = sight.mask_B1ST.defined() ? std::optional(sight.mask_B1ST) : std::nullopt;
  const torch::Tensor y_BHSC =
      at::scaled_dot_product_attention(q_BHSC, k_BKTC, v_BKTC, mask, /*dropout_p=*/0, is_causal,
                                       /*scale=*/std::nullopt, is_grouped);
  return o_proj(y_BHSC.transpose(1, 2).contiguous().flatten(2));
}

MlpImpl::MlpImpl(const Config& c, torch::Dtype dtype)
    : gate_proj(linear(c.hidden_size, c.intermediate_size, c.mlp_bias, dtype)),
      up_proj(linear(c.hidden_size, c.intermediate_size, c.mlp_bias, dtype)),
      down_proj(linear(c.intermediate_size, c.hidden_size, c.mlp_bias, dtype)) {
  register_module("gate_proj", gate_proj);
  register_module("up_proj", up_proj);
  register_module("down_proj", down_proj);
}

torch::Tensor MlpImpl::forward(const torch::Tensor& x_BSD) {
  return down_proj(torch::silu(gate_proj(x_BSD)) * up_proj(x_BSD));
}

DecoderLayerImpl::DecoderLayerImpl(const Config& c, torch::Dtype dtype)
    : input_layernorm(rms_norm(c, dtype)),
      self_attn(c, dtype),
      post_attention_layernorm(rms_norm(c, dtype)),
      mlp(c, dtype) {
  register_module("input_layernorm", input_layernorm);
  register_module("self_attn", self_attn);
  register_module("post_attention_layernorm", post_attention_layernorm);
  register_module("mlp", mlp);
}

torch::Tensor DecoderLayerImpl::forward(const torch::Tensor& x_BSD, const Sight& sight, KeysValues* cache) {
  const torch::Tensor y_BSD = x_BSD + self_attn(input_layernorm(x_BSD), sight, cache);
  return y_BSD + mlp(post_attention_layernorm(y_BSD));
}

DecoderImpl::DecoderImpl(const Config& c, torch::Dtype dtype)
    : config(c), embed_tokens(embedding(c.vocab_size, c.hidden_size, dtype)), norm(rms_norm(c, dtype)) {
  register_module("embed_tokens", embed_tokens);
  auto list = register_module("layers", torch::nn::ModuleList());
  for (std::int64_t i = 0; i < c.num_layers; ++i) {
    layers.emplace_back(c, dtype);
    list->push_back(layers.back().ptr());
  }
  register_module("norm", norm);
}

torch::Tensor DecoderImpl::forward(const torch::Tensor& ids_BS, KvCache* cache, const torch::Tensor& pads_B,
                                   const torch::Tensor& positions_BS) {
  torch::Tensor x_BSD = embed_tokens(ids_BS);
  const Sight sight = sight_of(ids_BS, cache, pads_B, positions_BS, config, x_BSD.scalar_type());
  if (cache != nullptr) cache->layers.resize(layers.size());
  for (std::size_t i = 0; i < layers.size(); ++i) {
    x_BSD = layers[i](x_BSD, sight, cache != nullptr ? &cache->layers[i] : nullptr);
  }
  if (cache != nullptr) cache->length += ids_BS.size(1);
  return norm(x_BSD);
}

LlamaImpl::LlamaImpl(const Config& c, torch::Dtype dtype) : config(c), model(c, dtype) {
  register_module("model", model);
  if (c.tie_word_embeddings) return;
  lm_head = register_module("lm_head", linear(c.hidden_size, c.vocab_size, /*bias=*/false, dtype));
}

torch::Tensor LlamaImpl::forward(const torch::Tensor& ids_BS, KvCache* cache, const torch::Tensor& pads_B,
                                 const torch::Tensor& positions_BS) {
  return logits(model(ids_BS, cache, pads_B, positions_BS));
}

torch::Tensor LlamaImpl::logits(const torch::Tensor& x_BSD) {
  if (!lm_head.is_empty()) return lm_head(x_BSD);
  return torch::nn::functional::linear(x_BSD, model->embed_tokens->weight);
}

void allocate(torch::nn::Module& module, const torch::Device& device) { mt::materialize(module, device); }

void initialize(LlamaImpl& model, const torch::Device& device) {
  allocate(model, device);
  const torch::NoGradGuard no_grad;
  for (const auto& item : model.named_parameters()) {
    torch::Tensor parameter = item.value();
    if (parameter.dim() > 1) {
      parameter.normal_(0, model.config.initializer_range);
    } else {
      parameter.fill_(item.key().ends_with("bias") ? 0 : 1);
    }
  }
}

}  // namespace llama
