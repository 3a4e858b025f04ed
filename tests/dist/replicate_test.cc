// replicate: equal to one device, one all-reduce a bucket, and parameters that get no gradient.
#include <sys/resource.h>

#include "data_parallel_training.h"
#include "trace_order.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;

class Replicated : public ::testing::TestWithParam<int> {};

TEST_P(Replicated, TrainsAsOneDevice) {
  on_ranks(GetParam(), [n = GetParam()](int) {
    const mt::DeviceMesh mesh = batches(n);
    Tower stack = filled(Tower(6, 5, 3));
    mt::replicate(*stack, mesh, {.bucket_bytes = 200, .first_bucket_bytes = 50});
    expect_trains_alike(filled(Tower(6, 5, 3)), stack, mesh, {2 * n, 6});
    for (const torch::Tensor& p : stack->parameters())
      EXPECT_EQ(mt::placements(p), mt::Placements{mt::Replicate()});
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, Replicated, ::testing::Values(1, 2, 3, 4));

TEST(ReplicatedCounts, OneAllReduceForEachBucket) {
  on_ranks(2, [](int rank) {
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble, rank);
    const auto count = [&](const mt::ReplicateOptions& options) {
      Tower stack = filled(Tower(6, 8, 2));
      mt::replicate(*stack, batches(2), options);
      const mt::CommDebugMode comm;
      stack(batch).sum().backward();
      const auto reductions = comm.get_comm_counts()[Collective::all_reduce_coalesced];
      EXPECT_EQ(comm.get_total_counts(), reductions);
      return reductions;
    };
    EXPECT_EQ(count({}), 1);
    // Each of the ten parameters fills one.
    EXPECT_EQ(count({.bucket_bytes = 8, .first_bucket_bytes = 8}), 10);
    EXPECT_EQ(count({.bucket_bytes = 1 << 20, .first_bucket_bytes = 8}), 2);
  });
}

TEST(ReplicatedOverlap, ABucketIsUnderWayWhileBackwardComputesAndIsNeededAtItsEnd) {
  on_ranks(2, [](int rank) {
    Tower stack = filled(Tower(6, 8, 2));
    mt::replicate(*stack, batches(2), {.bucket_bytes = 1 << 20, .first_bucket_bytes = 8});
    const torch::Tensor loss = stack(numbers({2, 6}, torch::kDouble, rank)).sum();
    mt::TraceMode trace;
    loss.backward();
    trace.stop();
    std::vector<std::string> events = events_in(trace, {{"c10d::allreduce_coalesced_", "starts"},
                                                        {"meshtorch::wait_all_reduce_coalesced", "is needed"},
                                                        {"aten::threshold_backward", "computes"}});
    events.erase(std::ranges::unique(events).begin(), events.end());
    // What gloo has brought by then is not waited for; in memory each rank takes it when it is needed.
    if (!ranks_share_memory() && events.back() == "starts") events.push_back("is needed");
    EXPECT_EQ(events, (std::vector<std::string>{"starts", "computes", "starts", "is needed"}));
  });
}

TEST(ReplicatedOverlap, RanksWithOtherBucketsAreTold) {
  on_ranks(2, [](int rank) {
    Tower stack = filled(Tower(6, 8, 2));
    mt::replicate(*stack, batches(2), {.bucket_bytes = 1 << 20, .first_bucket_bytes = rank == 0 ? 8 : 90});
    const torch::Tensor loss = stack(numbers({2, 6}, torch::kDouble, rank)).sum();
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_NE(error.find("the ranks of a group disagree on a collective"), std::string::npos) << error;
    EXPECT_NE(error.find("for replicate of "), std::string::npos) << error;
    // The group is as usable as before.
    EXPECT_EQ(mt::all_reduce(torch::ones({}), "sum", batches(2)).item<float>(), 2);
  });
}

#if defined(__GLIBC__) && !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
// A step of 64 MiB that is made again takes the pages of the one before it, which the kernel would have to
// clear: 16,384 of them each time.
TEST(ReplicatedMemory, WhatAStepFreesTheNextTakesAgain) {
  on_ranks(4, [](int) {
    Tower stack = filled(Tower(6, 8, 1));
    mt::replicate(*stack, batches(4));
  });
  const auto step = [] {
    std::vector<torch::Tensor> tensors(8);
    for (torch::Tensor& t : tensors) t = torch::ones({2 << 20});
  };
  const auto fresh_pages = [] {
    rusage used{};
    getrusage(RUSAGE_SELF, &used);
    return used.ru_minflt;
  };
  for (int i = 0; i < 2; ++i) step();
  const long before = fresh_pages();
  for (int i = 0; i < 4; ++i) step();
  EXPECT_LT(fresh_pages() - before, 16384);
}
#endif

TEST(ReplicatedStart, ParametersAndBuffersAreThoseOfTheFirstRank) {
  on_ranks(2, [](int rank) {
    mt::nn::BatchNorm1d norm(3);
    {
      const torch::NoGradGuard no_grad;
      norm->weight.fill_(rank + 1);
      norm->running_mean.fill_(rank + 5);
    }
    mt::replicate(*norm, batches(2));
    EXPECT_TRUE(is_equal(whole_of(norm->weight), torch::full({3}, 1.0f)));
    EXPECT_TRUE(is_equal(norm->running_mean, torch::full({3}, 5.0f)));
  });
}

TEST(ReplicatedGradients, NoSyncAccumulatesAndOneReductionFollows) {
  on_ranks(2, [](int rank) {
    Tower plain = filled(Tower(6, 8, 2));
    Tower stack = filled(Tower(6, 8, 2));
    mt::replicate(*stack, batches(2));
    const mt::CommDebugMode comm;
    for (int step = 0; step < 3; ++step) {
      const torch::Tensor batch = numbers({4, 6}, torch::kDouble, step);
      mean_square(plain(batch)).backward();
      std::optional<mt::NoSync> no_sync;
      if (step < 2) no_sync.emplace(*stack);
      mean_square(stack(rows_of(batch, 2, rank))).backward();
    }
    EXPECT_EQ(comm.get_total_counts(), 1);
    expect_same_parameters(plain, stack, /*gradients=*/true, 1e-9);
  });
}

// One of two layers, by the batch; one layer that is never used; one weight under two names.
struct ChoosingImpl : torch::nn::Module {
  ChoosingImpl() : first(4, 4), second(4, 4), never(4, 4), tied(4, 4) {
    register_module("first", first);
    register_module("second", second);
    register_module("never", never);
    register_module("tied", tied);
  }
  torch::Tensor forward(torch::Tensor x, bool chooses_first) {
    return tied(chooses_first ? first(x) : second(x));
  }
  mt::nn::Linear first, second, never, tied;
};
MESHTORCH_MODULE(Choosing);

TEST(ReplicatedUnused, AreAnErrorThatNamesThem) {
  on_ranks(2, [](int) {
    Choosing module = filled(Choosing());
    mt::replicate(*module, batches(2));
    const torch::Tensor loss = module(numbers({2, 4}, torch::kDouble), true).sum();
    const std::string error = error_of([&] { loss.backward(); });
    EXPECT_NE(error.find("never.weight"), std::string::npos) << error;
    EXPECT_NE(error.find("second.bias"), std::string::npos) << error;
    EXPECT_EQ(error.find("first.weight"), std::string::npos) << error;
    EXPECT_NE(error.find("find_unused_parameters"), std::string::npos) << error;
  });
}

TEST(ReplicatedUnused, CountAsZeroWhenTold) {
  on_ranks(2, [](int rank) {
    Choosing module = filled(Choosing());
    Choosing plain = filled(Choosing());
    mt::replicate(*module, batches(2),
                  {.bucket_bytes = 8, .first_bucket_bytes = 8, .find_unused_parameters = true});
    const torch::Tensor batch = numbers({2, 4}, torch::kDouble);
    ((plain(batch, true).square().sum() + plain(batch, false).square().sum()) / 2).backward();
    module(batch, rank == 0).square().sum().backward();
    EXPECT_FALSE(module->never->weight.grad().defined());
    expect_same_parameters(plain, module, /*gradients=*/true, 1e-9);
  });
}

// A weight under two names.
struct SharedWeightImpl : torch::nn::Module {
  SharedWeightImpl() : up(4, 4) {
    register_module("up", up);
    down = register_parameter("down", up->weight);
  }
  torch::Tensor forward(torch::Tensor x) { return torch::matmul(torch::tanh(up(x)), down); }
  mt::nn::Linear up;
  torch::Tensor down;
};
MESHTORCH_MODULE(SharedWeight);

TEST(ReplicatedGradients, TiedParametersAreOne) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    const auto tied = [] {
      SharedWeight module;
      module->to(torch::kDouble);
      const torch::NoGradGuard no_grad;
      module->up->weight.copy_(numbers({4, 4}, torch::kDouble) / 8);
      module->up->bias.copy_(numbers({4}, torch::kDouble));
      return module;
    };
    const auto check = [&](SharedWeight module) {
      SharedWeight plain = tied();
      torch::optim::SGD plain_sgd({plain->up->weight, plain->up->bias}, 0.1);
      torch::optim::SGD sgd({module->up->weight, module->up->bias}, 0.1);
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor batch = numbers({4, 4}, torch::kDouble, step);
        plain_sgd.zero_grad();
        sgd.zero_grad();
        mean_square(plain(batch)).backward();
        mean_square(module(rows_of(batch, 2, mesh.get_local_rank()))).backward();
        expect_same_parameters(plain, module, /*gradients=*/true, 1e-9);
        plain_sgd.step();
        sgd.step();
      }
      expect_same_parameters(plain, module, /*gradients=*/false, 1e-9);
      EXPECT_TRUE(module->down.is_same(module->up->weight));
    };
    SharedWeight copied = tied();
    mt::replicate(*copied, mesh);
    check(copied);
    SharedWeight sharded = tied();
    mt::fully_shard(*sharded, mesh);
    check(sharded);
  });
}

}  // namespace
}  // namespace meshtorch::testing
