// What can be asked of a module after fully_shard, and what is kept between forward and backward.
#include "data_parallel_training.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;

struct SettingTower {
  SettingTower(const mt::DeviceMesh& mesh, const mt::FullyShardOptions& options = {})
      : tower(filled(Tower(6, 5, 3))) {
    for (Mlp& layer : tower->layers) layers.push_back(mt::fully_shard(*layer, mesh, options));
    layers.push_back(mt::fully_shard(*tower, mesh, options));
  }
  mt::FSDPModule& root() { return layers.back(); }
  Tower tower;
  std::vector<mt::FSDPModule> layers;
};

class PartsAfterForward : public ::testing::TestWithParam<int> {};

TEST_P(PartsAfterForward, TrainsAsOneDevice) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = batches(4);
    SettingTower model(mesh, {.reshard_after_forward = GetParam()});
    expect_trains_alike(filled(Tower(6, 5, 3)), model.tower, mesh, {8, 6});
  });
}

TEST_P(PartsAfterForward, BackwardSendsTheRestOfThePartOnly) {
  on_ranks(4, [](int) {
    SettingTower model(batches(4), {.reshard_after_forward = GetParam()});
    const mt::CommDebugMode comm;
    const torch::Tensor loss = model.tower(numbers({2, 6}, torch::kDouble)).sum();
    const auto gathers = [&] { return comm.get_comm_counts()[Collective::all_gather_into_tensor]; };
    EXPECT_EQ(gathers(), 4);
    loss.backward();
    EXPECT_EQ(gathers(), GetParam() == 1 ? 4 : 8);
    EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], 4);
    for (mt::FSDPModule& layer : model.layers) EXPECT_FALSE(layer.is_unsharded());
  });
}

INSTANTIATE_TEST_SUITE_P(Ranks, PartsAfterForward, ::testing::Values(1, 2, 4));

TEST(PartsAfterForwardErrors, NumbersThatDoNotDivideAreRefused) {
  on_ranks(4, [](int) {
    for (const int ranks : {3, 0, -2, 8}) {
      Mlp mlp = filled(Mlp(6, 5));
      const std::string error =
          error_of([&] { mt::fully_shard(*mlp, batches(4), {.reshard_after_forward = ranks}); });
      EXPECT_NE(error.find("for 4 ranks"), std::string::npos) << error;
      EXPECT_NE(error.find("that divides 4"), std::string::npos) << error;
      EXPECT_FALSE(mt::is_dtensor(mlp->up->weight));
    }
  });
}

TEST(FullyShardSettings, ParametersStayWholeAfterBackwardIfAsked) {
  on_ranks(2, [](int rank) {
    SettingTower model(batches(2));
    Tower plain = filled(Tower(6, 5, 3));
    model.root().set_reshard_after_backward(false);
    const mt::CommDebugMode comm;
    for (int step = 0; step < 2; ++step) {
      const torch::Tensor batch = numbers({4, 6}, torch::kDouble, step);
      mean_square(plain(batch)).backward();
      if (step == 1) model.root().set_reshard_after_backward(true);
      mean_square(model.tower(rows_of(batch, 2, rank))).backward();
      EXPECT_EQ(model.root().is_unsharded(), step == 0);
    }
    // Of the second pass: only what forward dropped is gathered again.
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 4 + 3 + 3);
    expect_same_parameters(plain, model.tower, /*gradients=*/true, 1e-9);
  });
}

TEST(FullyShardSettings, GradientsAreDividedByWhatIsGiven) {
  on_ranks(2, [](int rank) {
    SettingTower model(batches(2));
    Tower plain = filled(Tower(6, 5, 3));
    for (mt::FSDPModule& layer : model.layers) layer.set_gradient_divide_factor(8);
    const torch::Tensor batch = numbers({4, 6}, torch::kDouble);
    (mean_square(plain(batch)) / 4).backward();
    mean_square(model.tower(rows_of(batch, 2, rank))).backward();
    expect_same_parameters(plain, model.tower, /*gradients=*/true, 1e-9);
    EXPECT_NE(error_of([&] { model.root().set_gradient_divide_factor(0); }).find("got 0"), std::string::npos);
  });
}

TEST(FullyShardSettings, SumsAreEnoughForAverages) {
  on_ranks(2, [](int) {
    SettingTower model(batches(2));
    for (mt::FSDPModule& layer : model.layers) layer.set_force_sum_reduction_for_comms(true);
    expect_trains_alike(filled(Tower(6, 5, 3)), model.tower, batches(2), {4, 6});
  });
}

TEST(FullyShardSettings, AHookSeesReducedShards) {
  on_ranks(2, [](int rank) {
    SettingTower model(batches(2));
    Tower plain = filled(Tower(6, 5, 3));
    for (mt::FSDPModule& layer : model.layers)
      layer.set_all_reduce_hook([](const torch::Tensor& shard) { shard.mul_(3); });
    const torch::Tensor batch = numbers({4, 6}, torch::kDouble);
    (mean_square(plain(batch)) * 3).backward();
    mean_square(model.tower(rows_of(batch, 2, rank))).backward();
    expect_same_parameters(plain, model.tower, /*gradients=*/true, 1e-9);
  });
}

TEST(FullyShardSettings, CopiesAreReducedWithTheLastPassOnly) {
  on_ranks(4, [](int rank) {
    SettingTower model(mt::init_device_mesh(torch::kCPU, {2, 2}, {"replicate", "shard"}));
    Tower plain = filled(Tower(6, 5, 3));
    const mt::CommDebugMode comm;
    for (int step = 0; step < 3; ++step) {
      model.root().set_requires_all_reduce(step == 2);
      const torch::Tensor batch = numbers({8, 6}, torch::kDouble, step);
      mean_square(plain(batch)).backward();
      mean_square(model.tower(rows_of(batch, 4, rank))).backward();
      EXPECT_EQ(model.tower->norm->weight.grad().defined(), step == 2);
    }
    EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], 3 * 4);
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce_coalesced], 4);
    expect_same_parameters(plain, model.tower, /*gradients=*/true, 1e-9);
  });
}

// An embedding's backward reads indices, not the table.
struct TableImpl : torch::nn::Module {
  TableImpl() : table(torch::nn::EmbeddingOptions(7, 6)), mlp(6, 5) {
    register_module("table", table);
    register_module("mlp", mlp);
  }
  torch::Tensor forward(torch::Tensor ids) { return mlp(table(ids)); }
  mt::nn::Embedding table;
  Mlp mlp;
};
MESHTORCH_MODULE(Table);

TEST(FullyShardSettings, WhatBackwardDoesNotReadIsNotGatheredForIt) {
  on_ranks(2, [](int rank) {
    Table plain = filled(Table());
    Table module = filled(Table());
    mt::FSDPModule table = mt::fully_shard(*module->table, batches(2));
    mt::fully_shard(*module, batches(2));
    table.set_unshard_in_backward(false);
    for (int step = 0; step < 2; ++step) {
      const torch::Tensor ids = (torch::arange(4) * 3 + step).remainder(7);
      mean_square(plain(ids)).backward();
      const mt::CommDebugMode comm;
      mean_square(module(rows_of(ids, 2, rank))).backward();
      EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 2);
    }
    expect_same_parameters(plain, module, /*gradients=*/true, 1e-9);
  });
}

// Each rank uses a layer of its own.
struct ChoiceImpl : torch::nn::Module {
  ChoiceImpl() : first(4, 4), second(4, 4) {
    register_module("first", first);
    register_module("second", second);
  }
  torch::Tensor forward(torch::Tensor x, int64_t which) { return which == 0 ? first(x) : second(x); }
  mt::nn::Linear first, second;
};
MESHTORCH_MODULE(Choice);

TEST(FullyShardSettings, ParametersWithoutGradientCountAsZeroWhenTold) {
  on_ranks(2, [](int rank) {
    Choice plain = filled(Choice());
    Choice module = filled(Choice());
    mt::fully_shard(*module, batches(2)).set_reduce_scatter_unused_params(true);
    const torch::Tensor batch = numbers({2, 4}, torch::kDouble);
    ((plain(batch.narrow(0, 0, 1), 0).sum() + plain(batch.narrow(0, 1, 1), 1).sum()) / 2).backward();
    module(batch.narrow(0, rank, 1), rank).sum().backward();
    expect_same_parameters(plain, module, /*gradients=*/true, 1e-12);
  });
}

TEST(MemoryEstimate, OfWhatWouldBeShardedIsThatOfWhatIs) {
  on_ranks(4, [](int rank) {
    for (const bool is_hybrid : {false, true}) {
      const mt::DeviceMesh mesh =
          is_hybrid ? mt::init_device_mesh(torch::kCPU, {2, 2}, {"replicate", "shard"}) : batches(4);
      const mt::MixedPrecisionPolicy policy{.param_dtype = torch::kFloat};
      const std::vector<mt::RankMemory> before =
          mt::estimate_memory(*filled(Tower(6, 5, 3)), mesh,
                              {.groups = {"layer*"}, .mp_policy = policy, .memory = {.activations = 7}});
      SettingTower model(mesh, {.mp_policy = policy});
      const std::vector<mt::RankMemory> after = mt::estimate_memory(*model.tower, {.activations = 7});
      ASSERT_EQ(before.size(), 4);
      for (std::size_t r = 0; r < 4; ++r) {
        EXPECT_EQ(before[r].rank, after[r].rank);
        EXPECT_EQ(before[r].parameters, after[r].parameters);
        EXPECT_EQ(before[r].gradients, before[r].parameters);
        EXPECT_EQ(before[r].optimizer, 2 * before[r].parameters);
        EXPECT_EQ(before[r].activations, 7);
        EXPECT_EQ(before[r].replicas, 2 * (6 * 5 + 5 + 5 * 6 + 6) * 4) << "two layers in float";
        EXPECT_EQ(after[r].replicas, before[r].replicas);
      }
      EXPECT_EQ(before[static_cast<std::size_t>(rank)].parameters, mt::memory_of(*model.tower).parameters);
    }
    const mt::RankMemory copy =
        mt::estimate_memory(*filled(Mlp(6, 5)), batches(4), {.is_replicated = true})[3];
    EXPECT_EQ(copy.parameters, (6 * 5 + 5 + 5 * 6 + 6) * 8);
    EXPECT_EQ(copy.replicas, 0);
  });
}

TEST(FullyShardSettings, APassThatFailedIsForgottenOnDemand) {
  on_ranks(2, [](int) {
    SettingTower model(batches(2));
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble);
    model.tower(batch).sum().backward();
    model.tower->zero_grad();
    // Forward stops in the second layer, while the third may be under way.
    EXPECT_NE(error_of([&] {
                torch::Tensor x = batch;
                model.layers[0].unshard();
                model.layers[1].start_unshard();
                TORCH_CHECK(false, "stop");
              }).find("stop"),
              std::string::npos);
    model.root().reset_iter_state();
    for (mt::FSDPModule& layer : model.layers) EXPECT_FALSE(layer.is_unsharded());
    expect_trains_alike(filled(Tower(6, 5, 3)), model.tower, batches(2), {4, 6}, 2);
  });
}

}  // namespace
}  // namespace meshtorch::testing
