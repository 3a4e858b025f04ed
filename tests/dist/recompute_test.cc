// recompute: the same gradients for less memory, also of sharded modules and with random numbers.
#include <meshtorch/recompute.h>

#include "data_parallel_training.h"

namespace meshtorch::testing {
namespace {

TEST(Recompute, GivesTheSameGradients) {
  Mlp plain = filled(Mlp(6, 5)), again = filled(Mlp(6, 5));
  const torch::Tensor x = numbers({3, 6}, torch::kDouble).requires_grad_();
  const torch::Tensor other = numbers({3, 6}, torch::kDouble).requires_grad_();
  plain(x).square().sum().backward();
  mt::recompute([&](torch::Tensor input) { return again(input); }, other).square().sum().backward();
  EXPECT_TRUE(is_equal(other.grad(), x.grad()));
  expect_same_parameters(plain, again, /*gradients=*/true, 0);
}

TEST(Recompute, NeedsNoInputThatRequiresGradients) {
  Mlp plain = filled(Mlp(6, 5)), again = filled(Mlp(6, 5));
  const torch::Tensor x = numbers({3, 6}, torch::kDouble);
  plain(x).sum().backward();
  int calls = 0;
  const auto counted = [&](torch::Tensor input) {
    ++calls;
    return again(input);
  };
  const torch::Tensor y = mt::recompute(counted, x);
  EXPECT_EQ(calls, 1);
  y.sum().backward();
  EXPECT_EQ(calls, 2);
  expect_same_parameters(plain, again, /*gradients=*/true, 0);
  const torch::NoGradGuard no_grad;
  mt::recompute(counted, x);
  EXPECT_EQ(calls, 3);
}

TEST(Recompute, DrawsTheSameNumbersAgain) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    for (const bool is_distributed : {false, true}) {
      torch::Tensor x = torch::ones({64}, torch::kDouble);
      if (is_distributed) x = mt::distribute_tensor(x, mesh, {mt::Shard(0)});
      x = x.detach().requires_grad_();
      const torch::Tensor y = mt::recompute([](torch::Tensor t) { return torch::dropout(t, 0.5, true); }, x);
      const torch::Tensor next = torch::rand({1});
      y.sum().backward();
      EXPECT_TRUE(is_equal(whole_of(x.grad()), whole_of(y)));
      // The numbers in between are not drawn again.
      EXPECT_FALSE(torch::equal(torch::rand({1}), next));
    }
  });
}

TEST(Recompute, SaysWhatWasChanged) {
  const torch::Tensor x = numbers({3}, torch::kDouble);
  const torch::Tensor w = numbers({3}, torch::kDouble).requires_grad_();
  const torch::Tensor y = mt::recompute([&](torch::Tensor t) { return t * w; }, x);
  x.add_(1);
  const std::string error = error_of([&] { y.sum().backward(); });
  EXPECT_NE(error.find("changed in place"), std::string::npos) << error;
}

struct RecomputedImpl : torch::nn::Module {
  RecomputedImpl(int64_t width, int64_t hidden, int64_t depth) : stack(width, hidden, depth) {
    register_module("stack", stack);
  }
  torch::Tensor forward(torch::Tensor x) {
    for (Mlp& layer : stack->layers) x = mt::recompute([&](torch::Tensor t) { return layer(t); }, x);
    return stack->norm(x);
  }
  Tower stack;
};
MESHTORCH_MODULE(Recomputed);

TEST(Recompute, OfShardedLayersGathersEachOnceMore) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    Recomputed net = filled(Recomputed(6, 5, 3));
    for (Mlp& layer : net->stack->layers) mt::fully_shard(*layer, mesh);
    mt::fully_shard(*net, mesh);
    {
      const mt::CommDebugMode comm;
      net(numbers({2, 6}, torch::kDouble)).sum().backward();
      EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], 4 + 3);
      EXPECT_EQ(comm.get_total_counts(), 4 + 3 + 4);
    }
    net->zero_grad();
    expect_trains_alike(filled(Recomputed(6, 5, 3)), net, mesh, {4, 6});
  });
}

}  // namespace
}  // namespace meshtorch::testing
