// Data parallelism on meshes of several axes: HSDP, and both kinds with tensor and sequence parallelism.
#include <meshtorch/checkpoint.h>

#include "data_parallel_training.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::ColwiseParallel;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::Shard;

Tower hybrid_stack(const mt::DeviceMesh& mesh, int64_t hidden) {
  Tower stack = filled(Tower(6, hidden, 2));
  for (Mlp& layer : stack->layers) mt::fully_shard(*layer, mesh);
  mt::fully_shard(*stack, mesh);
  return stack;
}

TEST(HybridShard, TrainsAsOneDevice) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"replicate", "shard"});
    Tower stack = hybrid_stack(mesh, 5);
    EXPECT_EQ(mt::placements(stack->layers[0]->up->weight), (mt::Placements{Replicate(), Shard(0)}));
    expect_trains_alike(filled(Tower(6, 5, 2)), stack, mesh, {4, 6});
  });
}

TEST(HybridShard, AddsOneAllReduceForEachGroup) {
  on_ranks(4, [](int rank) {
    Tower stack = hybrid_stack(mt::init_device_mesh(torch::kCPU, {2, 2}, {"replicate", "shard"}), 8);
    const mt::CommDebugMode comm;
    stack(numbers({2, 6}, torch::kDouble, rank)).sum().backward();
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 3 + 2);
    EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor_coalesced], 3);
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce_coalesced], 3);
    EXPECT_EQ(comm.get_total_counts(), 11);
  });
}

const mt::ParallelizePlan kTensorParallel{{"attention.[qkv]", ColwiseParallel()},
                                          {"attention.out", RowwiseParallel()},
                                          {"mlp.up", ColwiseParallel()},
                                          {"mlp.down", RowwiseParallel()}};

// The same for batches that are distributed: nothing becomes plain on the way.
const mt::ParallelizePlan kAllDistributed{{"norm[12]", mt::NoParallel({.use_local_output = false})},
                                          {"attention.[qkv]", ColwiseParallel({.use_local_output = false})},
                                          {"attention.out", RowwiseParallel({.use_local_output = false})},
                                          {"mlp.up", ColwiseParallel({.use_local_output = false})},
                                          {"mlp.down", RowwiseParallel({.use_local_output = false})}};

// In either order of the axes: splits of one dim by both are strided in one of them.
class DataAndTensor : public ::testing::TestWithParam<std::vector<std::string>> {
 protected:
  static mt::DeviceMesh mesh() { return mt::init_device_mesh(torch::kCPU, {2, 2}, GetParam()); }
};
INSTANTIATE_TEST_SUITE_P(Axes, DataAndTensor,
                         ::testing::Values(std::vector<std::string>{"dp", "tp"},
                                           std::vector<std::string>{"tp", "dp"}),
                         [](const auto& each) { return each.param[0] + "_" + each.param[1]; });

TEST_P(DataAndTensor, FullyShardedBlockTrainsAsOneDevice) {
  on_ranks(4, [](int) {
    Block block = filled(Block(8, 2, 12));
    mt::parallelize_module(*block, mesh()["tp"], kTensorParallel);
    mt::fully_shard(*block->mlp, mesh()["dp"]);
    mt::fully_shard(*block, mesh()["dp"]);
    const bool dp_first = GetParam()[0] == "dp";
    EXPECT_EQ(
        mt::placements(block->mlp->up->weight),
        (dp_first ? mt::Placements{mt::StridedShard(0, 2), Shard(0)} : mt::Placements{Shard(0), Shard(0)}));
    expect_trains_alike(filled(Block(8, 2, 12)), block, mesh()["dp"], {4, 3, 8});
  });
}

TEST_P(DataAndTensor, ReplicatedBlockTrainsAsOneDevice) {
  on_ranks(4, [](int) {
    Block block = filled(Block(8, 2, 10));
    mt::parallelize_module(*block, mesh()["tp"], kTensorParallel);
    mt::replicate(*block, mesh()["dp"], {.bucket_bytes = 500, .first_bucket_bytes = 100});
    expect_trains_alike(filled(Block(8, 2, 10)), block, mesh()["dp"], {4, 3, 8});
  });
}

TEST_P(DataAndTensor, SequenceParallelBlockTrainsAsOneDevice) {
  on_ranks(4, [](int) {
    Block block = filled(Block(8, 2, 12));
    const mt::PrepareModuleInput gather({.input_layouts = Shard(1), .desired_input_layouts = Replicate()});
    const RowwiseParallel back({.output_layouts = Shard(1), .use_local_output = false});
    mt::parallelize_module(
        *block, mesh()["tp"],
        {{"", mt::PrepareModuleInput({.input_layouts = Replicate(), .desired_input_layouts = Shard(1)})},
         {"norm[12]", mt::SequenceParallel()},
         {"attention", gather},
         {"attention.[qkv]", ColwiseParallel()},
         {"attention.out", back},
         {"mlp", gather},
         {"mlp.up", ColwiseParallel()},
         {"mlp.down", back}});
    mt::fully_shard(*block, mesh()["dp"]);
    expect_trains_alike(filled(Block(8, 2, 12)), block, mesh()["dp"], {4, 3, 8});
  });
}

TEST_P(DataAndTensor, DistributedBatchesAreOneBatch) {
  on_ranks(4, [](int) {
    Block plain = filled(Block(8, 2, 12));
    Block block = filled(Block(8, 2, 12));
    mt::parallelize_module(*block, mesh()["tp"], kAllDistributed);
    mt::fully_shard(*block, mesh()["dp"]);
    const torch::Tensor batch = numbers({3, 2, 8}, torch::kDouble) / 4;
    const bool dp_first = GetParam()[0] == "dp";
    const mt::Placements placements =
        dp_first ? mt::Placements{Shard(0), Replicate()} : mt::Placements{Replicate(), Shard(0)};
    plain(batch).square().sum().backward();
    block(mt::distribute_tensor(batch, mesh(), placements)).square().sum().backward();
    expect_same_parameters(plain, block, /*gradients=*/true, 1e-9);
  });
}

TEST_P(DataAndTensor, NormsOfGradientsAreThoseOfTheWhole) {
  on_ranks(4, [](int) {
    Block plain = filled(Block(8, 2, 12));
    Block block = filled(Block(8, 2, 12));
    mt::parallelize_module(*block, mesh()["tp"], kTensorParallel);
    mt::parallelize_module(*block, mesh()["tp"], {{"norm[12]", mt::NoParallel()}});
    mt::fully_shard(*block, mesh()["dp"]);
    const torch::Tensor batch = numbers({4, 2, 8}, torch::kDouble) / 4;
    mean_square(plain(batch)).backward();
    mean_square(block(rows_of(batch, 2, mesh()["dp"].get_local_rank()))).backward();
    const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1);
    EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(block->parameters(), 0.1), expected, 1e-9);
    expect_same_parameters(plain, block, /*gradients=*/true, 1e-9);
  });
}

// What a plan leaves plain is on the axis of batches only, what it splits on both.
TEST_P(DataAndTensor, NormsOfGradientsOnTwoMeshesAreThoseOfTheWhole) {
  on_ranks(4, [](int) {
    for (const double type : {2.0, 1.0, std::numeric_limits<double>::infinity()}) {
      SCOPED_TRACE(type);
      Block plain = filled(Block(8, 2, 12));
      Block block = filled(Block(8, 2, 12));
      mt::parallelize_module(*block, mesh()["tp"], kTensorParallel);
      mt::fully_shard(*block, mesh()["dp"]);
      ASSERT_NE(mt::device_mesh(block->norm1->weight), mt::device_mesh(block->mlp->up->weight));
      const torch::Tensor batch = numbers({4, 2, 8}, torch::kDouble) / 4;
      mean_square(plain(batch)).backward();
      mean_square(block(rows_of(batch, 2, mesh()["dp"].get_local_rank()))).backward();
      const double expected = torch::nn::utils::clip_grad_norm_(plain->parameters(), 0.1, type);
      EXPECT_NEAR(torch::nn::utils::clip_grad_norm_(block->parameters(), 0.1, type), expected, 1e-9);
      expect_same_parameters(plain, block, /*gradients=*/true, 1e-9);
    }
  });
}

TEST(HybridAndTensor, ThreeAxesTrainAsOneDevice) {
  on_ranks(4, [](int) {
    for (const std::vector<int64_t>& shape : {std::vector<int64_t>{1, 2, 2}, std::vector<int64_t>{2, 1, 2}}) {
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, shape, {"replicate", "shard", "tp"});
      Block block = filled(Block(8, 2, 12));
      mt::parallelize_module(*block, mesh["tp"], kTensorParallel);
      mt::fully_shard(*block, mesh[{"replicate", "shard"}]);
      expect_trains_alike(filled(Block(8, 2, 12)), block, mesh[{"replicate", "shard"}], {4, 3, 8}, 2);
    }
  });
}

TEST(DataAndTensorErrors, MeshesThatDoNotFitAreRefused) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    Mlp mlp = filled(Mlp(6, 4));
    mt::parallelize_module(*mlp, mesh["tp"], {{"down", RowwiseParallel()}});
    const mt::DeviceMesh other = mt::init_device_mesh(torch::kCPU, {4}, {"dp"});
    EXPECT_NE(error_of([&] { mt::fully_shard(*mlp, other); }).find("take both from one mesh"),
              std::string::npos);
    EXPECT_NE(error_of([&] { mt::fully_shard(*mlp, mesh["tp"]); }).find("over the axis of batches already"),
              std::string::npos);
    // Nothing was changed.
    EXPECT_FALSE(mt::is_dtensor(mlp->up->weight));
  });
}

TEST(DataAndTensorErrors, SplitsThatTwoAxesCannotMakeAreRefused) {
  if (ranks_are_processes()) GTEST_SKIP() << "needs six ranks";
  on_ranks(6, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {3, 2}, {"dp", "tp"});
    Mlp mlp = filled(Mlp(6, 7));  // 4 rows and 3: 2, 2 and 0 of the ones, 1, 1 and 1 of the others
    mt::parallelize_module(*mlp, mesh["tp"], {{"up", ColwiseParallel()}});
    const std::string error = error_of([&] { mt::fully_shard(*mlp, mesh["dp"]); });
    EXPECT_NE(error.find("two axes cannot split one dim so unevenly"), std::string::npos) << error;
    EXPECT_NE(error.find("up.weight, shape [7, 6]"), std::string::npos) << error;
  });
}

// Weights in float, computed in bfloat16, gradients added up in float.
TEST(MixedPrecision, EqualsTheSamePolicyByHand) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = batches(2);
    const auto make = [] {
      Mlp mlp = filled(Mlp(6, 5));
      mlp->to(torch::kFloat);
      return mlp;
    };
    const mt::MixedPrecisionPolicy policy{
        .param_dtype = torch::kBFloat16, .reduce_dtype = torch::kFloat, .output_dtype = torch::kFloat};
    Mlp sharded = make();
    mt::fully_shard(*sharded, mesh, {.mp_policy = policy});
    Mlp copied = make();
    mt::replicate(*copied, mesh, {.mp_policy = policy});
    const torch::Tensor batch = numbers({4, 6}, torch::kFloat);
    std::map<std::string, torch::Tensor> expected;
    torch::Tensor output;
    for (int r = 0; r < 2; ++r) {
      Mlp low = make();
      low->to(torch::kBFloat16);
      const torch::Tensor y = low(rows_of(batch, 2, r).to(torch::kBFloat16)).to(torch::kFloat);
      if (r == rank) output = y.detach();
      y.square().sum().backward();
      for (const auto& p : low->named_parameters()) {
        const torch::Tensor half = p.value().grad().to(torch::kFloat) / 2;
        torch::Tensor& sum = expected[p.key()];
        sum = sum.defined() ? sum + half : half;
      }
    }
    for (Mlp& module : {std::ref(sharded), std::ref(copied)}) {
      for (int call = 0; call < 2; ++call) {  // the second adds to the first
        const torch::Tensor y = module(rows_of(batch, 2, rank));
        EXPECT_TRUE(is_equal(y.detach(), output));
        y.square().sum().backward();
      }
      for (const auto& p : module->named_parameters()) {
        EXPECT_EQ(p.value().scalar_type(), torch::kFloat);
        EXPECT_TRUE(is_equal(whole_of(p.value().grad()), expected[p.key()] * 2)) << p.key();
      }
    }
  });
}

// A large model never exists whole: its shards are made and filled one by one.
TEST(DataParallelCheckpoint, FillsShardsOfParametersThatHadNoMemory) {
  namespace cp = mt::checkpoint;
  const std::string directory = kept_directory("data_parallel_meta");
  on_ranks(2, [&](int rank) {
    Mlp plain = filled(Mlp(6, 5));
    cp::save(directory, cp::State().add("model", *plain));
    Mlp sharded(6, 5);
    sharded->to(torch::kDouble);
    for (const torch::Tensor& p : sharded->parameters()) mt::replace_data(p, p.detach().to(torch::kMeta));
    mt::fully_shard(*sharded, batches(2));
    EXPECT_TRUE(mt::to_local(sharded->up->weight).is_meta());
    cp::load(directory, cp::State().add("model", *sharded));
    EXPECT_EQ(mt::to_local(sharded->up->weight).size(0), rank == 0 ? 3 : 2);
    const torch::Tensor batch = numbers({4, 6}, torch::kDouble);
    mean_square(plain(batch)).backward();
    mean_square(sharded(rows_of(batch, 2, rank))).backward();
    expect_same_parameters(plain, sharded, /*gradients=*/true, 1e-9);
  });
}

TEST(DataParallelCheckpoint, HasShardsWhileParametersAreWhole) {
  namespace cp = mt::checkpoint;
  const std::string directory = kept_directory("data_parallel_whole");
  on_ranks(2, [&](int rank) {
    Mlp plain = filled(Mlp(6, 5)), sharded = filled(Mlp(6, 5));
    const mt::FSDPModule group = mt::fully_shard(*sharded, batches(2), {.reshard_after_forward = false});
    torch::optim::AdamW optimizer(sharded->parameters(), torch::optim::AdamWOptions(1e-2));
    const torch::Tensor batch = numbers({4, 6}, torch::kDouble);
    mean_square(sharded(rows_of(batch, 2, rank))).backward();
    optimizer.step();
    const torch::Tensor loss = mean_square(sharded(rows_of(batch, 2, rank)));
    EXPECT_TRUE(group.is_unsharded());
    cp::save(directory, cp::State().add("model", *sharded).add("optimizer", optimizer, *sharded));
    EXPECT_FALSE(group.is_unsharded());
    EXPECT_TRUE(mt::is_dtensor(sharded->up->weight));
    loss.backward();  // gathers again
    cp::load(directory, cp::State().add("model", *plain));
    expect_same_parameters(plain, sharded, /*gradients=*/false, 0);
  });
}

// One way to train a block: over which ranks batches are split, and how the block is made parallel.
struct TrainingWay {
  std::string name;
  std::optional<mt::DeviceMesh> data;  // nothing: one device
  std::function<void(Block&)> distribute;

  torch::Tensor rows(const torch::Tensor& batch) const {
    return data ? rows_of(batch, flat().size(), flat().get_local_rank()) : batch;
  }
  double mean(const torch::Tensor& loss) const {
    return (data ? mt::all_reduce(whole_of(loss), "avg", flat()) : loss.detach()).item<double>();
  }
  mt::DeviceMesh flat() const { return data->ndim() == 1 ? *data : data->flatten(); }
};

std::vector<TrainingWay> ways_to_train() {
  const mt::DeviceMesh both = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
  const mt::DeviceMesh hybrid = mt::init_device_mesh(torch::kCPU, {2, 2}, {"replicate", "shard"});
  const mt::DeviceMesh four = batches(4);
  return {{"dp 2 x tp 2", both["dp"],
           [=](Block& b) {
             mt::parallelize_module(*b, both["tp"], kTensorParallel);
             mt::fully_shard(*b, both["dp"]);
           }},
          {"fully_shard 4", four, [=](Block& b) { mt::fully_shard(*b, four); }},
          {"replicate 4", four, [=](Block& b) { mt::replicate(*b, four); }},
          {"HSDP 2 x 2", hybrid, [=](Block& b) { mt::fully_shard(*b, hybrid); }},
          {"one rank", std::nullopt, [](Block&) {}}};
}

TEST(DataParallelCheckpoint, GoesOnUnderAnyOtherParallelism) {
  namespace cp = mt::checkpoint;
  const torch::optim::AdamWOptions adam(1e-2);
  const auto step = [](const TrainingWay& way, Block& block, torch::optim::AdamW& optimizer, int number) {
    optimizer.zero_grad();
    const torch::Tensor loss = mean_square(block(way.rows(numbers({4, 2, 8}, torch::kDouble, number) / 4)));
    loss.backward();
    optimizer.step();
    return way.mean(loss);
  };
  constexpr int kBefore = 2, kAfter = 2;
  std::vector<std::string> directories;
  for (int i = 0; i < 4; ++i) directories.push_back(kept_directory("data_parallel" + std::to_string(i)));
  on_ranks(4, [&](int) {
    const std::vector<TrainingWay> ways = ways_to_train();
    const TrainingWay& alone = ways.back();
    std::vector<double> expected;
    {
      Block block = filled(Block(8, 2, 12));
      torch::optim::AdamW optimizer(block->parameters(), adam);
      for (int i = 0; i < kBefore + kAfter; ++i) expected.push_back(step(alone, block, optimizer, i));
    }
    for (std::size_t from = 0; from < directories.size(); ++from) {
      SCOPED_TRACE("saved on " + ways[from].name);
      {
        Block block = filled(Block(8, 2, 12));
        ways[from].distribute(block);
        torch::optim::AdamW optimizer(block->parameters(), adam);
        for (int i = 0; i < kBefore; ++i) step(ways[from], block, optimizer, i);
        cp::save(directories[from], cp::State().add("model", *block).add("optimizer", optimizer, *block));
      }
      for (const TrainingWay& way : ways) {
        SCOPED_TRACE("goes on on " + way.name);
        Block block(8, 2, 12);
        block->to(torch::kDouble);
        way.distribute(block);
        torch::optim::AdamW optimizer(block->parameters(), adam);
        cp::load(directories[from], cp::State().add("model", *block).add("optimizer", optimizer, *block));
        for (int i = kBefore; i < kBefore + kAfter; ++i)
          EXPECT_NEAR(step(way, block, optimizer, i), expected[static_cast<std::size_t>(i)], 1e-9);
      }
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
