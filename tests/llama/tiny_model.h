// Small Llamas for tests: every rank makes the same weights and the same tokens without communication.
#pragma once

#include "../dist/numbers.h"
#include "parallelize.h"

namespace meshtorch::testing {

inline llama::Config tiny_config(int64_t heads = 4, int64_t kv_heads = 4, int64_t vocab = 24) {
  llama::Config config;
  config.vocab_size = vocab;
  config.hidden_size = 16;
  config.intermediate_size = 20;
  config.num_layers = 2;
  config.num_heads = heads;
  config.num_kv_heads = kv_heads;
  config.head_dim = 4;
  config.max_positions = 32;
  return config;
}

// A plain model whose weights are a function of their names' order.
inline llama::Llama filled_model(const llama::Config& config, torch::Dtype dtype = torch::kDouble) {
  llama::Llama model(config, dtype);
  llama::allocate(*model);
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (torch::Tensor& p : model->parameters())
    p.copy_(numbers(p.sizes(), dtype, seed++) / 8 + (p.dim() == 1 ? 1.0 : 0.0));
  return model;
}

inline torch::Tensor tokens(int64_t batch, int64_t length, const llama::Config& config, int64_t seed = 0) {
  const torch::Tensor steps = torch::arange(batch * length, torch::kLong) * 29 + 13 * seed + 3;
  return (steps * steps).remainder(97).remainder(config.vocab_size).view({batch, length});
}

inline torch::Tensor whole(const torch::Tensor& tensor) {
  return mt::is_dtensor(tensor) ? mt::DTensor(tensor.detach()).full_tensor() : tensor.detach();
}

// Runs `body` on the ranks of a mesh, where plain tensors count as replicated. Tests run on 4 processes: what
// needs more runs on threads only.
inline void on_mesh(const llama::MeshShape& shape, const std::function<void(const mt::DeviceMesh&)>& body) {
  if (ranks_are_processes() && shape.size() > 4) GTEST_SKIP() << shape.size() << " ranks are threads";
  on_ranks(static_cast<int>(shape.size()), [&](int) {
    const mt::implicit_replication plain_is_replicated;
    body(llama::make_mesh(shape));
    mt::barrier();  // a process that leaves early would disturb those that still connect
  });
}
inline void on_mesh(int dp, int tp, const std::function<void(const mt::DeviceMesh&)>& body) {
  on_mesh({.dp = dp, .tp = tp}, body);
}

}  // namespace meshtorch::testing
