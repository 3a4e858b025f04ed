// The small tensor-parallel step that benchmarks share: 4 blocks of two layers, width 64, batch 1, sequence
// 8, forward, backward and SGD.
#pragma once

#include <meshtorch/meshtorch.h>
#include <torch/torch.h>

#include <memory>
#include <vector>

namespace small_step {

constexpr int64_t kBlocks = 4, kWidth = 64, kHidden = 256, kSequence = 8;

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

}  // namespace small_step
