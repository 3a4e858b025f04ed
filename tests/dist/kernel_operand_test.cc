// Kernels get what a plain run would give them: memory that lies alike, numbers that are numbers, shapes of
// this call.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Replicate;
using mt::Shard;

torch::Tensor gathered(const torch::Tensor& t) { return mt::DTensor(t).full_tensor(); }

// LibTorch's kernel reads mean and rstd as contiguous memory.
TEST(KernelOperands, SlicesOfSavedStatisticsAreContiguous) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const std::vector<int64_t> normalized{8};
    const torch::Tensor whole = numbers({2, 5, 8}, torch::kDouble).requires_grad_();
    const torch::Tensor weight = numbers({8}, torch::kDouble, 3).requires_grad_();
    const torch::Tensor incoming = numbers({2, 5, 8}, torch::kDouble, 5);
    const auto expected =
        torch::autograd::grad({torch::layer_norm(whole, normalized, weight)}, {whole, weight}, {incoming});
    const torch::Tensor x = mt::distribute_tensor(whole, mesh, {Replicate()});
    const torch::Tensor w = mt::distribute_tensor(weight, mesh, {Replicate()});
    const torch::Tensor g = mt::distribute_tensor(incoming, mesh, {Shard(1)});
    const auto gradients = torch::autograd::grad({torch::layer_norm(x, normalized, w)}, {x, w}, {g});
    EXPECT_TRUE(is_close(gathered(gradients[0]), expected[0], 1e-9));
    EXPECT_TRUE(is_close(gathered(gradients[1]), expected[1], 1e-9));
  });
}

TEST(KernelOperands, ShardsOfAUserThatAreViewsAreReadRightly) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor whole = numbers({2, 4, 8}, torch::kDouble);
    const std::vector<int64_t> normalized{8};
    const auto [y, mean, rstd] = torch::native_layer_norm(whole, normalized, {}, {}, 1e-5);
    const torch::Tensor incoming = numbers({2, 4, 8}, torch::kDouble, 5);
    const auto part = [&](const torch::Tensor& t) -> torch::Tensor {
      return mt::DTensor::from_local(t.narrow(1, 2 * rank, 2), mesh, {Shard(1)});
    };
    const auto backward = [&](const auto& as) {
      return std::get<0>(torch::native_layer_norm_backward(as(incoming), as(whole), normalized, as(mean),
                                                           as(rstd), {}, {}, {true, false, false}));
    };
    EXPECT_TRUE(is_close(gathered(backward(part)), backward([](const torch::Tensor& t) { return t; }), 1e-9));
  });
}

// The kernel writes as many elements as the parameter has, one after the other.
TEST(KernelOperands, ShardsOfAUserThatAreViewsAreWrittenRightly) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor memory = numbers({4, 4});
    const torch::Tensor before = memory.clone();
    const auto placed = [&](const torch::Tensor& t) -> torch::Tensor {
      return mt::DTensor::from_local(t.narrow(1, 2 * rank, 2), mesh, {Shard(1)});
    };
    const auto step = [&](const auto& as) {
      std::vector<torch::Tensor> x{as(memory)}, g{as(numbers({4, 4}, torch::kFloat, 3))},
          momentum{as(torch::zeros({4, 4}))};
      torch::_fused_sgd_(x, g, momentum, 0, 0.9, 0.1, 0, false, false, true);
    };
    step(placed);
    const torch::Tensor here = memory.clone();
    memory.copy_(before);
    step([](const torch::Tensor& t) { return t; });
    EXPECT_TRUE(is_close(here.narrow(1, 2 * rank, 2), memory.narrow(1, 2 * rank, 2)));
    EXPECT_TRUE(is_equal(here.narrow(1, 2 - 2 * rank, 2), before.narrow(1, 2 - 2 * rank, 2)));
  });
}

// The other ranks add a zero, which must be a number too: a tensor would make the result double.
TEST(KernelOperands, ANumberThatIsAddedToAPendingSumStaysANumber) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const torch::Tensor x = mt::distribute_tensor(numbers({5, 5}) > 0, mesh, {Shard(0)});
    const torch::Tensor count = x.sum();
    const torch::Tensor more = torch::sub(count, -5.0);
    EXPECT_EQ(more.scalar_type(), torch::kFloat);
    EXPECT_TRUE(is_equal(gathered(more), torch::sub((numbers({5, 5}) > 0).sum(), -5.0)));
  });
}

// One call after the other, alike in shape: sizes that depend on data are those of each call.
void expect_sizes_of_each_call(const std::function<torch::Tensor(const torch::Tensor&)>& call) {
  on_ranks(2, [&](int) {
    const mt::DeviceMesh mesh = line(2);
    for (const auto& values : {std::vector<int64_t>{1, 1, 2, 0}, {1, 2, 3, 4}, {0, 0, 0, 0}}) {
      const torch::Tensor whole = torch::tensor(values);
      for (const mt::Placement& p : {Replicate(), Shard(0)}) {
        const torch::Tensor result = call(mt::distribute_tensor(whole, mesh, {p}));
        const torch::Tensor expected = call(whole);
        EXPECT_EQ(result.sizes(), expected.sizes());
        EXPECT_TRUE(is_equal(gathered(result), expected));
      }
    }
  });
}

TEST(DataDependentShapes, OfUniqueAreThoseOfEachCall) {
  expect_sizes_of_each_call([](const torch::Tensor& t) { return std::get<0>(torch::_unique(t)); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return std::get<0>(torch::unique_dim(t, 0)); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return std::get<0>(torch::unique_consecutive(t)); });
}

TEST(DataDependentShapes, OfPlacesAndMasksAreThoseOfEachCall) {
  expect_sizes_of_each_call([](const torch::Tensor& t) { return torch::nonzero(t); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return torch::masked_select(t, t > 1); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return t.index({t > 1}); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return torch::repeat_interleave(t); });
  expect_sizes_of_each_call([](const torch::Tensor& t) { return torch::bincount(t); });
}

TEST(DataDependentShapes, OfTensorsThatAreWrittenToAreThoseOfEachCall) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    torch::Tensor out = mt::empty({0, 1}, mesh, {Replicate()}, torch::kLong);
    for (const auto& values : {std::vector<int64_t>{1, 1, 2, 0}, {0, 0, 0, 4}}) {
      const torch::Tensor whole = torch::tensor(values);
      torch::nonzero_out(out, mt::distribute_tensor(whole, mesh, {Shard(0)}));
      EXPECT_TRUE(is_equal(gathered(out), torch::nonzero(whole)));
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
