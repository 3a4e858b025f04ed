// The small pieces of work that benchmarks share, distributed and by hand: a tensor-parallel step (4 blocks
// of two layers, width 64, batch 1, sequence 8, forward, backward and SGD) and AdamW on many parameters.
#pragma once

#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace small_step {

constexpr int64_t kBlocks = 4, kWidth = 64, kHidden = 256, kSequence = 8;
constexpr int kRanks = 2;  // of what is done by hand

struct BlockImpl : torch::nn::Module {
  BlockImpl() : up(kWidth, kHidden), down(kHidden, kWidth) {
    register_module("up", up);
    register_module("down", down);
  }
  torch::Tensor forward(torch::Tensor x) { return down(torch::relu(up(x))); }
  meshtorch::nn::Linear up, down;
};
MESHTORCH_MODULE(Block);

struct Step {
  std::vector<Block> blocks;
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::SGD> optimizer;
  torch::Tensor x = torch::ones({1, kSequence, kWidth});

  explicit Step(const meshtorch::DeviceMesh& mesh) {
    for (int64_t i = 0; i < kBlocks; ++i) {
      blocks.emplace_back();
      meshtorch::parallelize_module(
          *blocks.back(), mesh,
          {{"up", meshtorch::ColwiseParallel()}, {"down", meshtorch::RowwiseParallel()}});
      for (const torch::Tensor& p : blocks.back()->parameters()) parameters.push_back(p);
    }
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-4));
  }

  void run() {
    optimizer->zero_grad();
    torch::Tensor y = x;
    for (Block& block : blocks) y = block(y);
    y.square().sum().backward();
    optimizer->step();
  }
};

// ---- the small tensor-parallel step by hand ----

// The identity whose gradient is summed over the ranks, and the sum whose gradient is passed on.
struct IntoParallel : torch::autograd::Function<IntoParallel> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return x.view_as(x);
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {meshtorch::wait_tensor(meshtorch::all_reduce(gradients[0], meshtorch::ReduceOp::sum, {}))};
  }
};
struct OutOfParallel : torch::autograd::Function<OutOfParallel> {
  static torch::Tensor forward(torch::autograd::AutogradContext*, const torch::Tensor& x) {
    return meshtorch::wait_tensor(meshtorch::all_reduce(x, meshtorch::ReduceOp::sum, {}));
  }
  static torch::autograd::variable_list backward(torch::autograd::AutogradContext*,
                                                 torch::autograd::variable_list gradients) {
    return {gradients[0]};
  }
};

struct StepByHand {
  struct Layers {
    torch::Tensor up, up_bias, down, down_bias;
  };
  std::vector<Layers> blocks;
  std::unique_ptr<torch::optim::SGD> optimizer;
  torch::Tensor x = torch::ones({1, kSequence, kWidth});

  StepByHand() {
    std::vector<torch::Tensor> parameters;
    const auto parameter = [&](torch::IntArrayRef shape) {
      parameters.push_back((0.05 * torch::randn(shape)).requires_grad_());
      return parameters.back();
    };
    for (int64_t i = 0; i < kBlocks; ++i) {
      const int64_t mine = kHidden / kRanks;
      Layers layers{parameter({mine, kWidth}), parameter({mine}), parameter({kWidth, mine}),
                    parameter({kWidth})};
      blocks.push_back(layers);
    }
    optimizer = std::make_unique<torch::optim::SGD>(parameters, torch::optim::SGDOptions(1e-4));
  }

  void run() {
    optimizer->zero_grad();
    torch::Tensor y = x;
    for (const Layers& layers : blocks) {
      const torch::Tensor h = torch::relu(torch::linear(IntoParallel::apply(y), layers.up, layers.up_bias));
      y = OutOfParallel::apply(torch::linear(h, layers.down)) + layers.down_bias;
    }
    y.square().sum().backward();
    optimizer->step();
  }
};

// ---- AdamW on many small parameters ----

struct ManyParameters {
  std::vector<torch::Tensor> parameters;
  std::unique_ptr<torch::optim::AdamW> optimizer;

  // Plain ones have the shape of a shard.
  explicit ManyParameters(const meshtorch::DeviceMesh* mesh, int count = 300) {
    constexpr int64_t kRows = 16;
    for (int i = 0; i < count; ++i) {
      if (mesh == nullptr) {
        parameters.push_back(torch::ones({kRows, 8}).requires_grad_());
        parameters.back().mutable_grad() = torch::ones({kRows, 8});
      } else {
        parameters.push_back(
            meshtorch::ones({kRows * kRanks, 8}, *mesh, {meshtorch::Shard(0)}, torch::requires_grad()));
        parameters.back().mutable_grad() = meshtorch::ones({kRows * kRanks, 8}, *mesh, {meshtorch::Shard(0)});
      }
    }
    optimizer = std::make_unique<torch::optim::AdamW>(parameters);
  }
};

}  // namespace small_step
