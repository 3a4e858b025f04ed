// Tensor and sequence parallel training against one device: losses, gradients and weights over 20 steps of
// AdamW in float64.
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::ColwiseParallel;
using mt::DTensor;
using mt::PrepareModuleInput;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::SequenceParallel;
using mt::Shard;

constexpr double kTolerance = 1e-10;

torch::Tensor whole(const torch::Tensor& tensor) {
  return mt::is_dtensor(tensor) ? DTensor(tensor.detach()).full_tensor() : tensor.detach();
}

// Trains both models on the same data and compares after every step. The outputs of `parallel` may be
// distributed.
template <class Holder>
void expect_same_training(Holder plain, Holder parallel, const std::vector<int64_t>& shape,
                          const std::function<torch::Tensor(torch::Tensor)>& as_input) {
  torch::optim::AdamW plain_adam(plain->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW parallel_adam(parallel->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 20; ++step) {
    const torch::Tensor batch = numbers(shape, torch::kDouble, step) / 4;
    plain_adam.zero_grad();
    parallel_adam.zero_grad();
    const torch::Tensor plain_loss = plain(batch).square().mean();
    const torch::Tensor parallel_loss = parallel(as_input(batch)).square().mean();
    plain_loss.backward();
    parallel_loss.backward();
    ASSERT_NEAR(plain_loss.template item<double>(), whole(parallel_loss).template item<double>(), kTolerance)
        << "step " << step;
    const auto expected = plain->named_parameters();
    for (const auto& p : parallel->named_parameters()) {
      ASSERT_TRUE(is_close(whole(p.value().grad()), expected[p.key()].grad(), kTolerance))
          << p.key() << ", step " << step;
    }
    plain_adam.step();
    parallel_adam.step();
    for (const auto& p : parallel->named_parameters()) {
      ASSERT_TRUE(is_close(whole(p.value()), expected[p.key()].detach(), kTolerance))
          << p.key() << ", step " << step;
    }
  }
}

struct TrainingCase {
  int ranks;
  int64_t hidden;
  int64_t sequence;
};
std::string training_in_name(const ::testing::TestParamInfo<TrainingCase>& info) {
  return "Ranks" + std::to_string(info.param.ranks) + "Hidden" + std::to_string(info.param.hidden) +
         "Sequence" + std::to_string(info.param.sequence);
}

class TensorParallelTraining : public ::testing::TestWithParam<TrainingCase> {};

TEST_P(TensorParallelTraining, MlpEqualsOneDevice) {
  const auto [ranks, hidden, sequence] = GetParam();
  on_ranks(ranks, [&, n = ranks, h = hidden, s = sequence](int) {
    Mlp parallel = filled(Mlp(6, h));
    mt::parallelize_module(*parallel, line(n), {{"up", ColwiseParallel()}, {"down", RowwiseParallel()}});
    expect_same_training(filled(Mlp(6, h)), parallel, {3, s, 6}, [](torch::Tensor x) { return x; });
  });
}

TEST_P(TensorParallelTraining, SequenceParallelMlpEqualsOneDevice) {
  const auto [ranks, hidden, sequence] = GetParam();
  on_ranks(ranks, [&, n = ranks, h = hidden, s = sequence](int) {
    const mt::DeviceMesh mesh = line(n);
    Mlp parallel = filled(Mlp(6, h));
    mt::parallelize_module(
        *parallel, mesh,
        {{"up", ColwiseParallel({.input_layouts = Shard(1)})},
         {"down", RowwiseParallel({.output_layouts = Shard(1), .use_local_output = false})}});
    expect_same_training(filled(Mlp(6, h)), parallel, {3, s, 6}, [&](torch::Tensor x) -> torch::Tensor {
      return mt::distribute_tensor(x, mesh, {Shard(1)});
    });
  });
}

TEST_P(TensorParallelTraining, BlockEqualsOneDevice) {
  const auto [ranks, hidden, sequence] = GetParam();
  on_ranks(ranks, [&, n = ranks, h = hidden, s = sequence](int) {
    Block parallel = filled(Block(8, 2, h));
    mt::parallelize_module(*parallel, line(n),
                           {{"attention.[qkv]", ColwiseParallel()},
                            {"attention.out", RowwiseParallel()},
                            {"mlp.up", ColwiseParallel()},
                            {"mlp.down", RowwiseParallel()}});
    expect_same_training(filled(Block(8, 2, h)), parallel, {3, s, 8}, [](torch::Tensor x) { return x; });
  });
}

TEST_P(TensorParallelTraining, SequenceParallelBlockEqualsOneDevice) {
  const auto [ranks, hidden, sequence] = GetParam();
  on_ranks(ranks, [&, n = ranks, h = hidden, s = sequence](int) {
    const mt::DeviceMesh mesh = line(n);
    Block parallel = filled(Block(8, 2, h));
    const PrepareModuleInput gather({.input_layouts = Shard(1), .desired_input_layouts = Replicate()});
    const RowwiseParallel back_to_sequence({.output_layouts = Shard(1), .use_local_output = false});
    mt::parallelize_module(*parallel, mesh,
                           {{"norm[12]", SequenceParallel()},
                            {"attention", gather},
                            {"attention.[qkv]", ColwiseParallel()},
                            {"attention.out", back_to_sequence},
                            {"mlp", gather},
                            {"mlp.up", ColwiseParallel()},
                            {"mlp.down", back_to_sequence}});
    expect_same_training(filled(Block(8, 2, h)), parallel, {3, s, 8}, [&](torch::Tensor x) -> torch::Tensor {
      return mt::distribute_tensor(x, mesh, {Shard(1)});
    });
  });
}

INSTANTIATE_TEST_SUITE_P(Sizes, TensorParallelTraining,
                         ::testing::Values(TrainingCase{2, 8, 4}, TrainingCase{4, 8, 4},
                                           TrainingCase{2, 9, 5}, TrainingCase{4, 10, 7}),
                         training_in_name);

}  // namespace
}  // namespace meshtorch::testing
