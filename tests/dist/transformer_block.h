// A transformer block in plain LibTorch code, for the tests of plans.
#pragma once

#include "numbers.h"

namespace meshtorch::testing {

// The same small weights on every rank.
template <class Holder>
Holder filled(Holder module) {
  module->to(torch::kDouble);
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (torch::Tensor& p : module->parameters())
    p.copy_(numbers(p.sizes(), torch::kDouble, seed++) / 8 + (p.dim() == 1 ? 1.0 : 0.0));
  return module;
}

struct MlpImpl : torch::nn::Module {
  MlpImpl(int64_t width, int64_t hidden) : up(width, hidden), down(hidden, width) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return down(torch::relu(up(x))); }
  mt::nn::Linear up;
  mt::nn::Linear down;
};
MESHTORCH_MODULE(Mlp);

// B batch, S sequence, D width, H heads, C width of a head.
struct AttentionImpl : torch::nn::Module {
  AttentionImpl(int64_t width, int64_t head_width)
      : q(width, width), k(width, width), v(width, width), out(width, width), head_width_(head_width) {
    register_module("q", q);
    register_module("k", k);
    register_module("v", v);
    register_module("out", out);
  }
  torch::Tensor forward(torch::Tensor x_BSD) {
    const auto heads = [&](const torch::Tensor& y_BSD) {
      return y_BSD.view({y_BSD.size(0), y_BSD.size(1), y_BSD.size(2) / head_width_, head_width_})
          .transpose(1, 2);
    };
    const torch::Tensor q_BHSC = heads(q(x_BSD)), k_BHSC = heads(k(x_BSD)), v_BHSC = heads(v(x_BSD));
    const torch::Tensor y_BHSC =
        torch::scaled_dot_product_attention(q_BHSC, k_BHSC, v_BHSC, {}, 0.0, /*is_causal=*/true);
    return out(y_BHSC.transpose(1, 2).contiguous().flatten(2));
  }
  mt::nn::Linear q, k, v, out;

 private:
  int64_t head_width_;
};
MESHTORCH_MODULE(Attention);

struct BlockImpl : torch::nn::Module {
  BlockImpl(int64_t width, int64_t head_width, int64_t hidden)
      : norm1(torch::nn::LayerNormOptions({width})),
        attention(width, head_width),
        norm2(torch::nn::LayerNormOptions({width})),
        mlp(width, hidden) {
    register_module("norm1", norm1);
    register_module("attention", attention);
    register_module("norm2", norm2);
    register_module("mlp", mlp);
  }
  torch::Tensor forward(torch::Tensor x) {
    x = x + attention(norm1(x));
    return x + mlp(norm2(x));
  }
  mt::nn::LayerNorm norm1;
  Attention attention;
  mt::nn::LayerNorm norm2;
  Mlp mlp;
};
MESHTORCH_MODULE(Block);

}  // namespace meshtorch::testing
