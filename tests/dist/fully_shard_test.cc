// fully_shard on a mesh of one axis: equal to one device, with exactly the collectives that it promises.
#include "data_parallel_training.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;

Tower sharded_tower(Tower stack, const mt::DeviceMesh& mesh, const mt::FullyShardOptions& options = {}) {
  for (Mlp& layer : stack->layers) mt::fully_shard(*layer, mesh, options);
  mt::fully_shard(*stack, mesh, options);
  return stack;
}

struct ShardCase {
  int ranks;
  int64_t hidden;
};
class FullyShard : public ::testing::TestWithParam<ShardCase> {};

TEST_P(FullyShard, TrainsAsOneDevice) {
  const auto [ranks, hidden] = GetParam();
  on_ranks(ranks, [n = ranks, h = hidden](int) {
    const mt::DeviceMesh mesh = batches(n);
    expect_trains_alike(filled(Tower(6, h, 3)), sharded_tower(filled(Tower(6, h, 3)), mesh), mesh,
                        {2 * n, 6});
  });
}

TEST_P(FullyShard, ParametersAreShardsBetweenSteps) {
  const auto [ranks, hidden] = GetParam();
  on_ranks(ranks, [n = ranks, h = hidden](int rank) {
    Tower stack = sharded_tower(filled(Tower(6, h, 2)), batches(n));
    stack(numbers({2, 6}, torch::kDouble, rank)).sum().backward();
    for (const auto& p : stack->named_parameters()) {
      ASSERT_TRUE(mt::is_dtensor(p.value())) << p.key();
      EXPECT_EQ(mt::placements(p.value()), mt::Placements{mt::Shard(0)}) << p.key();
      EXPECT_EQ(mt::placements(p.value().grad()), mt::Placements{mt::Shard(0)}) << p.key();
      EXPECT_TRUE(p.value().is_leaf());
    }
    // Rows as torch::chunk cuts them; the last ranks may have none.
    const int64_t rows = (h + n - 1) / n;
    const int64_t mine = std::max<int64_t>(0, std::min(h, (rank + 1) * rows) - rank * rows);
    EXPECT_EQ(mt::to_local(stack->layers[0]->up->weight).size(0), mine);
  });
}

std::string shard_case_name(const ::testing::TestParamInfo<ShardCase>& info) {
  return "Ranks" + std::to_string(info.param.ranks) + "Hidden" + std::to_string(info.param.hidden);
}

INSTANTIATE_TEST_SUITE_P(Sizes, FullyShard,
                         ::testing::Values(ShardCase{1, 8}, ShardCase{2, 8}, ShardCase{2, 5}, ShardCase{3, 4},
                                           ShardCase{4, 8}, ShardCase{4, 5}),
                         shard_case_name);

TEST(FullyShardCounts, OneGatherAndOneReductionForEachGroup) {
  on_ranks(2, [](int rank) {
    Tower stack = sharded_tower(filled(Tower(6, 8, 3)), batches(2));
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble, rank);
    for (int step = 0; step < 2; ++step) {
      const mt::CommDebugMode comm;
      const torch::Tensor loss = stack(batch).sum();
      EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 4);
      EXPECT_EQ(comm.get_total_counts(), 4);
      loss.backward();
      // The last group is still whole when backward begins.
      EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 4 + 3);
      EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], 4);
      EXPECT_EQ(comm.get_total_counts(), 4 + 3 + 4);
    }
  });
}

TEST(FullyShardCounts, WholeParametersStayAfterForwardIfAsked) {
  on_ranks(2, [](int rank) {
    Tower stack = sharded_tower(filled(Tower(6, 8, 3)), batches(2), {.reshard_after_forward = false});
    const mt::CommDebugMode comm;
    stack(numbers({2, 6}, torch::kDouble, rank)).sum().backward();
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 4);
    EXPECT_EQ(comm.get_total_counts(), 8);
  });
}

TEST(FullyShardCounts, EachGatherSendsTheShardOnce) {
  on_ranks(2, [](int rank) {
    Mlp mlp = filled(Mlp(6, 8));
    mt::fully_shard(*mlp, batches(2));
    const mt::CommDebugMode comm;
    mlp(numbers({2, 6}, torch::kDouble, rank)).sum().backward();
    const int64_t bytes = (6 * 8 + 8 + 8 * 6 + 6) * 8;
    const auto& statistics = comm.get_comm_counts().statistics();
    EXPECT_EQ(statistics.at(Collective::all_gather_into_tensor).bytes_sent, bytes / 2);
    EXPECT_EQ(statistics.at(Collective::reduce_scatter_tensor_coalesced).bytes_sent, bytes / 2);
  });
}

TEST(FullyShardForward, WithoutGradientsLeavesShardsBehind) {
  on_ranks(2, [](int) {
    Tower stack = sharded_tower(filled(Tower(6, 8, 2)), batches(2));
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble);
    Tower plain = filled(Tower(6, 8, 2));
    {
      const torch::NoGradGuard no_grad;
      EXPECT_TRUE(is_close(stack(batch), plain(batch).detach(), 1e-12));
    }
    {
      const c10::InferenceMode inference;
      EXPECT_TRUE(torch::allclose(stack(batch), plain(batch)));
    }
    for (const torch::Tensor& p : stack->parameters()) EXPECT_TRUE(mt::is_dtensor(p));
  });
}

// Parameters that the output does not depend on, and the same module twice.
struct UnevenUseImpl : torch::nn::Module {
  UnevenUseImpl() : used(4, 4), unused(4, 4) {
    register_module("used", used);
    register_module("unused", unused);
    scale = register_parameter("scale", torch::ones({}));
  }
  torch::Tensor forward(torch::Tensor x) { return used(torch::tanh(used(x))) * scale; }
  mt::nn::Linear used, unused;
  torch::Tensor scale;
};
MESHTORCH_MODULE(UnevenUse);

TEST(FullyShardForward, UnusedParametersAndScalarsAndModulesCalledTwice) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    UnevenUse inner = filled(UnevenUse());
    mt::fully_shard(*inner->used, mesh);
    mt::fully_shard(*inner, mesh);
    EXPECT_EQ(mt::placements(inner->scale), mt::Placements{mt::Replicate()});
    expect_trains_alike(filled(UnevenUse()), inner, mesh, {4, 4});
  });
}

TEST(FullyShardForward, FrozenParametersAreGatheredAndGetNoGradient) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    const auto frozen = [](Tower stack) {
      stack->layers[0]->up->weight.requires_grad_(false);
      for (torch::Tensor& p : stack->layers[1]->parameters()) p.requires_grad_(false);
      return stack;
    };
    expect_trains_alike(frozen(filled(Tower(6, 8, 3))), sharded_tower(frozen(filled(Tower(6, 8, 3))), mesh),
                        mesh, {4, 6});
  });
}

TEST(FullyShardForward, AnotherDimIsSplitIfAsked) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    const mt::FullyShardOptions options{.shard_placement_fn = [](const std::string&, const torch::Tensor& p) {
      return p.dim() == 2 ? std::optional(mt::Shard(-1)) : std::nullopt;
    }};
    Tower stack = sharded_tower(filled(Tower(6, 5, 2)), mesh, options);
    EXPECT_EQ(mt::placements(stack->layers[0]->down->weight), mt::Placements{mt::Shard(1)});
    EXPECT_EQ(mt::to_local(stack->layers[0]->down->weight).size(1), mesh.get_local_rank() == 0 ? 3 : 2);
    expect_trains_alike(filled(Tower(6, 5, 2)), stack, mesh, {4, 6});
  });
}

TEST(FullyShardGradients, AccumulateWithAndWithoutSync) {
  on_ranks(2, [](int rank) {
    for (const bool syncs : {true, false}) {
      Tower plain = filled(Tower(6, 8, 2));
      Tower stack = sharded_tower(filled(Tower(6, 8, 2)), batches(2));
      const mt::CommDebugMode comm;
      for (int step = 0; step < 3; ++step) {
        const torch::Tensor batch = numbers({4, 6}, torch::kDouble, step);
        mean_square(plain(batch)).backward();
        std::optional<mt::NoSync> no_sync;
        if (!syncs && step < 2) no_sync.emplace(*stack);
        mean_square(stack(rows_of(batch, 2, rank))).backward();
      }
      EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], syncs ? 9 : 3);
      expect_same_parameters(plain, stack, /*gradients=*/true, 1e-9);
    }
  });
}

TEST(FullyShardGradients, DistributedBatchesAreOneBatch) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    Tower plain = filled(Tower(6, 8, 2));
    Tower stack = sharded_tower(filled(Tower(6, 8, 2)), mesh);
    const torch::Tensor batch = numbers({5, 6}, torch::kDouble);  // 3 rows and 2
    const mt::CommDebugMode comm;
    const torch::Tensor loss = stack(mt::distribute_tensor(batch, mesh, {mt::Shard(0)})).square().sum();
    plain(batch).square().sum().backward();
    loss.backward();
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 3 + 2);
    EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], 3);
    expect_same_parameters(plain, stack, /*gradients=*/true, 1e-9);
  });
}

TEST(FullyShardHandle, UnshardShowsPlainParametersAndKeepsWhatIsWritten) {
  on_ranks(2, [](int) {
    Mlp mlp = filled(Mlp(6, 5));
    const torch::Tensor before = mlp->up->weight.detach().clone();
    mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2));
    handle.unshard();
    EXPECT_TRUE(handle.is_unsharded());
    ASSERT_FALSE(mt::is_dtensor(mlp->up->weight));
    EXPECT_TRUE(is_equal(mlp->up->weight.detach(), before));
    {
      const torch::NoGradGuard no_grad;
      mlp->up->weight.mul_(2);
    }
    handle.reshard();
    EXPECT_TRUE(is_equal(whole_of(mlp->up->weight), before * 2));
  });
}

// Of what ranks write to whole parameters each keeps the part that it owns, whether others have written or
// not.
TEST(FullyShardHandle, WholeParametersThatOneRankWroteAreGatheredAgainByAll) {
  on_ranks(2, [](int rank) {
    const torch::NoGradGuard no_grad;
    const torch::Tensor batch = numbers({2, 6}, torch::kDouble);
    for (int writer = 0; writer < 2; ++writer) {
      Mlp mlp = filled(Mlp(6, 5));
      Mlp plain = filled(Mlp(6, 5));
      mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2));
      handle.unshard();
      if (rank == writer) mlp->up->weight.mul_(2);
      plain->up->weight.chunk(2)[writer].mul_(2);
      EXPECT_TRUE(is_close(mlp(batch), plain(batch), 1e-12)) << "after rank " << writer << " wrote";
    }
  });
}

TEST(FullyShardHandle, AShardThatOneRankWroteWhileItWasGatheredIsAnError) {
  on_ranks(2, [](int rank) {
    const torch::NoGradGuard no_grad;
    Mlp mlp = filled(Mlp(6, 5));
    mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2));
    const torch::Tensor shard = mt::DTensor(mlp->up->weight).to_local();
    handle.start_unshard();
    if (rank == 0) {
      shard.mul_(2);
      const std::string error = error_of([&] { handle.unshard(); });
      EXPECT_NE(error.find("the local tensor of a parameter was written while the parameter was gathered\n"
                           "  parameter: up.weight"),
                std::string::npos)
          << error;
    } else {
      handle.unshard();
    }
  });
}

TEST(FullyShardHandle, ParametersThatAreNotGatheredAreAnErrorNotGarbage) {
  on_ranks(2, [](int) {
    Mlp mlp = filled(Mlp(6, 5));
    mt::FSDPModule handle = mt::fully_shard(*mlp, batches(2));
    handle.unshard();
    const torch::Tensor view = mlp->up->weight.detach();
    handle.reshard();
    const std::string error = error_of([&] { view.sum(); });
    EXPECT_NE(error.find("read while they were not gathered"), std::string::npos) << error;
    EXPECT_NE(error.find("Mlp"), std::string::npos) << error;
  });
}

TEST(FullyShardForward, RanksOutsideTheMeshRunAlong) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1}, {"dp"});
    Tower plain = filled(Tower(6, 5, 2));
    Tower tower = sharded_tower(filled(Tower(6, 5, 2)), mesh);
    Mlp copied = filled(Mlp(6, 5));
    mt::replicate(*copied, mesh);
    const torch::Tensor batch = numbers({4, 6}, torch::kDouble);
    mean_square(plain(batch)).backward();
    const mt::CommDebugMode comm;
    mean_square(tower(rows_of(batch, 2, rank % 2))).backward();
    mean_square(copied(batch)).backward();
    if (rank == 2) {
      EXPECT_EQ(comm.get_total_counts(), 0);
      EXPECT_TRUE(mt::is_dtensor(tower->norm->weight.grad()));
    } else {
      expect_same_parameters(plain, tower, /*gradients=*/true, 1e-9);
    }
  });
}

TEST(FullyShardErrors, SayWhatToDo) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    torch::nn::Linear plain(2, 2);
    EXPECT_NE(error_of([&] { mt::fully_shard(*plain, mesh); }).find("meshtorch::nn::Linear"),
              std::string::npos);
    Mlp mlp(4, 4);
    const mt::DeviceMesh cube = mt::init_device_mesh(torch::kCPU, {1, 1, 2}, {"a", "b", "c"});
    EXPECT_NE(error_of([&] { mt::fully_shard(*mlp, cube); }).find("1D or 2D DeviceMesh"), std::string::npos);
    const mt::FullyShardOptions wrong{
        .shard_placement_fn = [](const std::string&, const torch::Tensor&) { return mt::Shard(5); }};
    EXPECT_NE(error_of([&] { mt::fully_shard(*mlp, mesh, wrong); }).find("S(5)"), std::string::npos);
    mlp = filled(Mlp(4, 4));
    mt::fully_shard(*mlp, mesh);
    const torch::Tensor loss = mlp(numbers({2, 4}, torch::kDouble)).sum();
    EXPECT_NE(error_of([&] {
                loss.backward({}, /*retain_graph=*/true, /*create_graph=*/true);
              }).find("cannot be differentiated again"),
              std::string::npos);
  });
}

// The hooks of the copy are those of the original, and so is the group that they run.
TEST(FullyShardErrors, ACopyMadeAfterwardsIsRefusedWhenItRuns) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    for (const bool is_sharded : {true, false}) {
      mt::nn::Linear layer = filled(mt::nn::Linear(4, 3));
      const auto early = std::dynamic_pointer_cast<mt::nn::Linear::ContainedType>(layer->clone());
      is_sharded ? (void)mt::fully_shard(*layer, mesh) : (void)mt::replicate(*layer, mesh);
      const auto late = std::dynamic_pointer_cast<mt::nn::Linear::ContainedType>(layer->clone());
      const torch::Tensor x = numbers({2, 4}, torch::kDouble);
      const std::string error = error_of([&] { late->forward(x); });
      EXPECT_NE(error.find("has the parameters of the original"), std::string::npos) << error;
      EXPECT_TRUE(torch::equal(layer(x), early->forward(x)));
    }
  });
}

TEST(FullyShardErrors, ParametersWithoutMemoryAreNamedTogether) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    Tower tower = nullptr;
    {
      const mt::on_meta_device shapes_only;
      tower = sharded_tower(Tower(6, 5, 2), mesh);
    }
    const std::string error = error_of([&] { tower(numbers({2, 6}, torch::kFloat)); });
    for (const char* names : {": up.weight, up.bias, down.weight, down.bias\n", ": norm.weight, norm.bias\n"})
      EXPECT_NE(error.find(names), std::string::npos) << error;
  });
}

TEST(FullyShardErrors, AFailedBackwardLeavesTheModelUsable) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = batches(2);
    Mlp mlp = filled(Mlp(6, 8));
    mt::fully_shard(*mlp, mesh);
    const torch::Tensor x = numbers({2, 6}, torch::kDouble).requires_grad_();
    const torch::Tensor y = x * 2;
    y.register_hook([](const torch::Tensor&) { TORCH_CHECK(false, "stop"); });
    EXPECT_NE(error_of([&] { mlp(y).sum().backward(); }).find("stop"), std::string::npos);
    mlp->zero_grad();
    expect_trains_alike(filled(Mlp(6, 8)), mlp, mesh, {4, 6}, 2);
  });
}

}  // namespace
}  // namespace meshtorch::testing
