// Unmodified modules of LibTorch on distributed parameters and inputs give the results of one device.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Placements;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;

// Gives all parameters of a module the same small numbers.
void fill(torch::nn::Module& module) {
  const torch::NoGradGuard no_grad;
  module.to(torch::kDouble);
  int64_t seed = 0;
  for (Tensor& p : module.parameters()) p.set_data(numbers(p.sizes(), torch::kDouble, seed++) / 8);
}

// Splits each parameter on its first dim, and replicates buffers.
void distribute(torch::nn::Module& module, const mt::DeviceMesh& mesh) {
  for (Tensor& p : module.parameters()) p.set_data(mt::distribute_tensor(p.detach(), mesh, {Shard(0)}));
  for (Tensor& b : module.buffers()) {
    if (b.defined()) b.set_data(mt::distribute_tensor(b.detach(), mesh, {Replicate()}));
  }
}

// Runs `forward` on a plain and on a distributed copy, and compares results and gradients.
template <class Module, class Forward>
void check(const std::function<Module()>& make, const std::vector<int64_t>& input,
           const mt::Placement& input_placement, const Forward& forward) {
  mt::set_fallback_policy(mt::FallbackPolicy::silent);
  on_ranks(2, [&](int) {
    Module plain = make();
    Module split = make();
    fill(*plain);
    fill(*split);
    const mt::DeviceMesh mesh = line(2);
    distribute(*split, mesh);
    const Tensor x = numbers(input, torch::kDouble, 3).requires_grad_();
    const Tensor x_split =
        mt::distribute_tensor(numbers(input, torch::kDouble, 3), mesh, {input_placement}).requires_grad_();
    const Tensor expected = forward(plain, x);
    const Tensor actual = forward(split, x_split);
    EXPECT_TRUE(is_close(mt::DTensor(actual).full_tensor().detach(), expected.detach(), 1e-10));
    expected.square().sum().backward();
    actual.square().sum().backward();
    EXPECT_TRUE(is_close(mt::DTensor(x_split.grad()).full_tensor(), x.grad(), 1e-9));
    const auto plain_parameters = plain->parameters();
    const auto split_parameters = split->parameters();
    for (std::size_t i = 0; i < plain_parameters.size(); ++i) {
      EXPECT_TRUE(
          is_close(mt::DTensor(split_parameters[i].grad()).full_tensor(), plain_parameters[i].grad(), 1e-9))
          << "parameter " << i;
    }
    const auto plain_buffers = plain->buffers();
    const auto split_buffers = split->buffers();
    for (std::size_t i = 0; i < plain_buffers.size(); ++i) {
      EXPECT_TRUE(is_close(mt::DTensor(split_buffers[i]).full_tensor(), plain_buffers[i], 1e-9))
          << "buffer " << i;
    }
  });
  mt::set_fallback_policy(mt::FallbackPolicy::warn);
}

TEST(TorchModules, Conv2dAgreesWithOneDevice) {
  check<torch::nn::Conv2d>([] { return torch::nn::Conv2d(torch::nn::Conv2dOptions(4, 6, 3).padding(1)); },
                           {3, 4, 5, 5}, Shard(0), [](auto& m, const Tensor& x) { return m(x); });
}

TEST(TorchModules, BatchNorm2dAgreesWithOneDeviceRunningStatisticsIncluded) {
  check<torch::nn::BatchNorm2d>([] { return torch::nn::BatchNorm2d(4); }, {3, 4, 5, 5}, Shard(0),
                                [](auto& m, const Tensor& x) { return m(x); });
}

TEST(TorchModules, LstmAgreesWithOneDevice) {
  check<torch::nn::LSTM>([] { return torch::nn::LSTM(torch::nn::LSTMOptions(4, 3).batch_first(true)); },
                         {2, 5, 4}, Replicate(), [](auto& m, const Tensor& x) { return std::get<0>(m(x)); });
}

TEST(TorchModules, GruAgreesWithOneDevice) {
  check<torch::nn::GRU>([] { return torch::nn::GRU(torch::nn::GRUOptions(4, 3).batch_first(true)); },
                        {2, 5, 4}, Replicate(), [](auto& m, const Tensor& x) { return std::get<0>(m(x)); });
}

TEST(TorchModules, MultiheadAttentionAgreesWithOneDevice) {
  check<torch::nn::MultiheadAttention>(
      [] { return torch::nn::MultiheadAttention(torch::nn::MultiheadAttentionOptions(8, 2)); }, {5, 2, 8},
      Shard(1), [](auto& m, const Tensor& x) { return std::get<0>(m(x, x, x)); });
}

TEST(TorchModules, TransformerEncoderLayerAgreesWithOneDevice) {
  check<torch::nn::TransformerEncoderLayer>(
      [] {
        return torch::nn::TransformerEncoderLayer(
            torch::nn::TransformerEncoderLayerOptions(8, 2).dim_feedforward(12).dropout(0));
      },
      {5, 2, 8}, Shard(1), [](auto& m, const Tensor& x) { return m(x); });
}

TEST(TorchModules, EmbeddingAndLayerNormAgreeWithOneDevice) {
  check<torch::nn::LayerNorm>([] { return torch::nn::LayerNorm(torch::nn::LayerNormOptions({8})); },
                              {5, 2, 8}, Shard(0), [](auto& m, const Tensor& x) { return m(x); });
}

}  // namespace
}  // namespace meshtorch::testing
