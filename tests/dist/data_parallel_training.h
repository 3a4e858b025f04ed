// Training with data parallelism beside training on one device, for the tests of fully_shard and replicate.
#pragma once

#include "transformer_block.h"

namespace meshtorch::testing {

// Layers of which each is a group, and parameters of its own.
struct TowerImpl : torch::nn::Module {
  TowerImpl(int64_t width, int64_t hidden, int64_t depth) : norm(torch::nn::LayerNormOptions({width})) {
    for (int64_t i = 0; i < depth; ++i) {
      layers.push_back(Mlp(width, hidden));
      register_module("layer" + std::to_string(i), layers.back());
    }
    register_module("norm", norm);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Mlp& layer : layers) x = x + layer(x);
    return norm(x);
  }
  std::vector<Mlp> layers;
  mt::nn::LayerNorm norm;
};
MESHTORCH_MODULE(Tower);

inline torch::Tensor whole_of(const torch::Tensor& tensor) {
  return mt::is_dtensor(tensor) ? mt::DTensor(tensor.detach()).full_tensor() : tensor.detach();
}

// The rows of a batch that one of n ranks trains on.
inline torch::Tensor rows_of(const torch::Tensor& batch, int64_t n, int64_t rank) {
  return batch.narrow(0, rank * (batch.size(0) / n), batch.size(0) / n);
}

// Compares gradients and weights by name.
template <class Holder>
void expect_same_parameters(Holder& expected, Holder& actual, bool gradients, double tolerance) {
  const auto by_name = expected->named_parameters();
  for (const auto& p : actual->named_parameters()) {
    const torch::Tensor& other = by_name[p.key()];
    if (!gradients) {
      ASSERT_TRUE(is_close(whole_of(p.value()), other.detach(), tolerance)) << p.key();
    } else if (other.grad().defined()) {
      ASSERT_TRUE(p.value().grad().defined()) << p.key();
      ASSERT_TRUE(is_close(whole_of(p.value().grad()), other.grad(), tolerance)) << "gradient of " << p.key();
    } else {
      ASSERT_FALSE(p.value().grad().defined()) << p.key();
    }
  }
}

using Loss = std::function<torch::Tensor(const torch::Tensor& output)>;
inline torch::Tensor mean_square(const torch::Tensor& output) { return output.square().mean(); }

// Trains both for some steps of Adam, the parallel one with each rank's rows of the same batches, and
// compares losses, gradients and weights after each.
template <class Holder>
void expect_trains_alike(Holder expected, Holder actual, const mt::DeviceMesh& data, at::IntArrayRef shape,
                         int steps = 4, const Loss& loss = mean_square) {
  constexpr double kTolerance = 1e-9;
  torch::optim::AdamW expected_adam(expected->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW actual_adam(actual->parameters(), torch::optim::AdamWOptions(1e-2));
  const mt::DeviceMesh flat = data.ndim() == 1 ? data : data.flatten();
  for (int step = 0; step < steps; ++step) {
    SCOPED_TRACE("step " + std::to_string(step));
    const torch::Tensor batch = numbers(shape, torch::kDouble, step) / 4;
    expected_adam.zero_grad();
    actual_adam.zero_grad();
    const torch::Tensor expected_loss = loss(expected(batch));
    const torch::Tensor mine = loss(actual(rows_of(batch, flat.size(), flat.get_local_rank())));
    expected_loss.backward();
    mine.backward();
    const torch::Tensor actual_loss = mt::all_reduce(whole_of(mine), "avg", flat);
    ASSERT_NEAR(expected_loss.item<double>(), actual_loss.item<double>(), kTolerance);
    expect_same_parameters(expected, actual, /*gradients=*/true, kTolerance);
    expected_adam.step();
    actual_adam.step();
    expect_same_parameters(expected, actual, /*gradients=*/false, kTolerance);
  }
}

inline mt::DeviceMesh batches(int n) { return mt::init_device_mesh(torch::kCPU, {n}, {"dp"}); }

}  // namespace meshtorch::testing
