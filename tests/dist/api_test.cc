// The behaviour that PyTorch's test_api checks, as far as it needs no module hooks.
#include "numbers.h"

#include <ATen/autocast_mode.h>

namespace meshtorch::testing {
namespace {

using mt::Placements;
using mt::Replicate;
using mt::Shard;

TEST(DistributeTensor, KeepsTheGlobalShapeAndStaysALeaf) {
  on_ranks(4, [](int) {
    for (const bool requires_grad : {true, false}) {
      const torch::Tensor whole = numbers({12, 3}).requires_grad_(requires_grad);
      const mt::DTensor x = mt::distribute_tensor(whole, line(4), {Shard(0)});
      EXPECT_EQ(x.sizes(), torch::IntArrayRef({12, 3}));
      EXPECT_EQ(x.to_local().sizes(), torch::IntArrayRef({3, 3}));
      EXPECT_EQ(x.requires_grad(), requires_grad);
      EXPECT_TRUE(x.is_leaf());
    }
    const mt::DTensor last = mt::distribute_tensor(numbers({3, 12}), line(4), {Shard(-1)});
    EXPECT_EQ(last.placements()[0].dim(), 1);
  });
}

TEST(DistributeTensor, RefusesWhatDoesNotFit) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2});
    const torch::Tensor whole = numbers({12, 12});
    const auto expect = [](const char* words, const std::function<void()>& call) {
      EXPECT_NE(error_of(call).find(words), std::string::npos) << error_of(call);
    };
    expect("must have the same length", [&] { mt::distribute_tensor(whole, mesh, {Shard(0)}); });
    EXPECT_THROW(mt::distribute_tensor(whole, mesh, {Shard(0)}), c10::ValueError);
    const torch::Tensor result = numbers({12, 12}).requires_grad_() + 2;
    expect("distribute leaf tensor", [&] { mt::distribute_tensor(result, mesh, {Shard(0), Shard(1)}); });
    const mt::DTensor x = mt::distribute_tensor(whole, mesh, {Shard(0), Shard(1)});
    expect("to a different device mesh", [&] { mt::distribute_tensor(x, line(4), {Shard(0)}); });
    EXPECT_THROW(mt::distribute_tensor(x, line(4), {Shard(0)}), c10::ValueError);
    expect("to a different placements", [&] { mt::distribute_tensor(x, mesh, {Shard(0), Replicate()}); });
    expect("splits dim 2, but the tensor has 2 dims",
           [&] { mt::distribute_tensor(whole, mesh, {Shard(2), Shard(0)}); });
  });
}

TEST(DistributeTensor, SplitsUnevenSizesAsChunkDoes) {
  on_ranks(4, [](int rank) {
    const std::vector<std::pair<std::vector<int64_t>, int64_t>> cases{
        {{13, 3, 3}, 0}, {{14, 3, 3}, 0}, {{3, 13, 3}, 1}, {{3, 14, 3}, 1}, {{3, 3, 13}, 2}, {{3, 3, 14}, 2}};
    for (const auto& [shape, dim] : cases) {
      const torch::Tensor whole = numbers(shape);
      const mt::DTensor x = mt::distribute_tensor(whole, line(4), {Shard(dim)});
      EXPECT_EQ(x.sizes(), whole.sizes());
      EXPECT_TRUE(is_equal(x.to_local(), torch::chunk(whole, 4, dim)[static_cast<std::size_t>(rank)]));
    }
  });
}

TEST(DistributeTensor, TakesTheDataOfTheSourceRank) {
  on_ranks(3, [](int rank) {
    const torch::Tensor mine = numbers({6, 2}, torch::kFloat, rank);
    EXPECT_TRUE(is_equal(mt::distribute_tensor(mine, line(3), {Replicate()}).to_local(),
                         numbers({6, 2}, torch::kFloat, 0)));
    EXPECT_TRUE(is_equal(mt::distribute_tensor(mine, line(3), {Shard(0)}, {.src_data_rank = 2}).to_local(),
                         numbers({6, 2}, torch::kFloat, 2).narrow(0, 2 * rank, 2)));
    const mt::CommDebugMode comm;
    const mt::DTensor own = mt::distribute_tensor(mine, line(3), {Shard(0)}, {.src_data_rank = std::nullopt});
    mt::distribute_tensor(torch::empty({6, 2}, torch::kMeta), line(3), {Shard(0)});
    EXPECT_EQ(comm.get_total_counts(), 0);
    EXPECT_TRUE(is_equal(own.to_local(), mine.narrow(0, 2 * rank, 2)));
  });
}

TEST(DTensor, CastsKeepLayoutAndData) {
  on_ranks(2, [](int) {
    const mt::DTensor x = mt::DTensor::from_local(numbers({10}), line(2), {Replicate()});
    const mt::DTensor cast = x.to(torch::kBFloat16);
    EXPECT_EQ(cast.scalar_type(), torch::kBFloat16);
    EXPECT_EQ(cast.to_local().scalar_type(), torch::kBFloat16);
    const mt::DTensor split =
        mt::DTensor(mt::distribute_tensor(numbers({10}), line(2), {Shard(0)}).to(torch::kDouble));
    EXPECT_TRUE(is_equal(split.full_tensor(), numbers({10}, torch::kDouble)));
  });
}

TEST(DTensor, AutocastGivesTheLowerPrecision) {
  on_ranks(2, [](int) {
    const mt::DTensor x = mt::distribute_tensor(numbers({4, 6}), line(2), {Shard(0)});
    const mt::DTensor w = mt::distribute_tensor(numbers({6, 3}), line(2), {Replicate()});
    at::autocast::set_autocast_enabled(at::kCPU, true);
    at::autocast::set_autocast_dtype(at::kCPU, torch::kBFloat16);
    const torch::Tensor y = torch::mm(x, w);
    at::autocast::clear_cache();
    at::autocast::set_autocast_enabled(at::kCPU, false);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(mt::is_dtensor(y));
  });
}

TEST(DTensor, MetaTensorsAreMadeRealShardByShard) {
  on_ranks(2, [](int) {
    const mt::DTensor shape = mt::distribute_tensor(torch::empty({10, 3}, torch::kMeta), line(2), {Shard(0)});
    EXPECT_TRUE(shape.is_meta());
    const mt::DTensor real = torch::empty_like(shape, torch::kCPU);
    EXPECT_FALSE(real.is_meta());
    EXPECT_EQ(real.sizes(), torch::IntArrayRef({10, 3}));
    EXPECT_EQ(real.to_local().sizes(), torch::IntArrayRef({5, 3}));
  });
}

TEST(FromLocal, WithoutAShapeTakesShardsAsEqualAndDoesNotCommunicate) {
  on_ranks(3, [](int) {
    const mt::CommDebugMode comm;
    EXPECT_EQ(mt::DTensor::from_local(numbers({2, 4}), line(3), {Shard(0)}).sizes(),
              torch::IntArrayRef({6, 4}));
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

TEST(FromLocal, WithACheckFindsTheShapeOfUnequalShards) {
  on_ranks(3, [](int rank) {
    const torch::Tensor whole = numbers({7, 2});
    const torch::Tensor mine = torch::chunk(whole, 3)[static_cast<std::size_t>(rank)];
    const mt::DTensor x = mt::DTensor::from_local(mine, line(3), {Shard(0)}, {.run_check = true});
    EXPECT_EQ(x.sizes(), whole.sizes());
    EXPECT_TRUE(is_equal(x.full_tensor(), whole));
    const std::string error = error_of([&] {
      mt::DTensor::from_local(numbers({rank == 2 ? 5 : 2, 2}), line(3), {Shard(0)}, {.run_check = true});
    });
    EXPECT_NE(error.find("does not fit"), std::string::npos) << error;
    const std::string other = error_of([&] {
      mt::DTensor::from_local(numbers({2, 2}), line(3), {rank == 1 ? Shard(1) : Shard(0)},
                              {.run_check = true});
    });
    EXPECT_NE(other.find("rank 1 passed other placements"), std::string::npos) << other;
  });
}

TEST(FromLocal, GradientPlacementsOverrideTheDefault) {
  on_ranks(2, [](int) {
    const torch::Tensor local = numbers({4}).requires_grad_();
    const mt::DTensor x = mt::DTensor::from_local(local, line(2), {Replicate()},
                                                  {.grad_placements = Placements{mt::Partial()}});
    x.to_local().sum().backward();
    // A replicated gradient as a pending sum: each rank has an equal term.
    EXPECT_TRUE(is_equal(local.grad(), torch::full({4}, 0.5)));
  });
}

TEST(Factories, AllocateOnlyTheShard) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh = line(3);
    EXPECT_EQ(mt::empty({7, 2}, mesh, {Shard(0)}).sizes(), torch::IntArrayRef({7, 2}));
    EXPECT_TRUE(is_equal(mt::zeros({7, 2}, mesh, {Shard(0)}).full_tensor(), torch::zeros({7, 2})));
    EXPECT_TRUE(is_equal(mt::ones({2, 7}, mesh, {Shard(1)}, torch::kLong).full_tensor(),
                         torch::ones({2, 7}, torch::kLong)));
    EXPECT_TRUE(is_equal(mt::full({5}, 2.5, mesh, {mt::Partial()}).full_tensor(), torch::full({5}, 2.5)));
    EXPECT_TRUE(is_equal(mt::arange(8, mesh, {Shard(0)}).full_tensor(), torch::arange(8)));
    EXPECT_TRUE(is_equal(mt::eye(5, mesh, {Shard(1)}).full_tensor(), torch::eye(5)));
    EXPECT_TRUE(mt::zeros({4}, mesh, {Shard(0)}, torch::requires_grad()).requires_grad());
  });
}

}  // namespace
}  // namespace meshtorch::testing
