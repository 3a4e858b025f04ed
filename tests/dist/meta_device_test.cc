// Distributed tensors whose shards have no data: every shape and every collective of a run, and nothing sent.
#include <meshtorch/check_replicas.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

// Runs `body` as rank 0 of a world without others.
void on_fake_ranks(int world_size, const std::function<void()>& body) {
  if (ranks_are_processes()) GTEST_SKIP() << "the fake rank is none of theirs";
  mt::init_process_group(
      {.backend = "fake", .init_method = "tcp://none:0", .rank = 0, .world_size = world_size});
  body();
  mt::destroy_process_group();
}

torch::Tensor without_data(at::IntArrayRef sizes, torch::ScalarType type = torch::kFloat) {
  return torch::empty(sizes, torch::TensorOptions(type).device(torch::kMeta));
}
DTensor split_without_data(at::IntArrayRef sizes, const mt::Placements& placements) {
  return mt::distribute_tensor(without_data(sizes), line(4), placements, {.src_data_rank = std::nullopt});
}

TEST(MetaDevice, CollectivesCountAndGiveShapes) {
  on_fake_ranks(4, [] {
    const DTensor x = split_without_data({10, 6}, {Shard(0)});
    EXPECT_EQ(x.to_local().sizes(), (std::vector<int64_t>{3, 6}));
    mt::CommDebugMode comm;
    const DTensor whole = x.redistribute({Replicate()});
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], 1) << comm.table();
    EXPECT_EQ(whole.to_local().sizes(), (std::vector<int64_t>{10, 6}));
    EXPECT_TRUE(whole.to_local().is_meta());
  });
}

TEST(MetaDevice, OperatorsWithoutAMetaKernelInLibTorchHaveOne) {
  on_fake_ranks(4, [] {
    const torch::Tensor ids = without_data({2, 3}, torch::kLong);
    const torch::Tensor table = without_data({10, 8}).requires_grad_();
    const torch::Tensor rows = torch::embedding(table, ids);
    EXPECT_EQ(rows.sizes(), (std::vector<int64_t>{2, 3, 8}));
    rows.sum().backward();
    EXPECT_EQ(table.grad().sizes(), table.sizes());
    const torch::Tensor chosen =
        torch::where(without_data({3, 1}, torch::kBool), without_data({4}, torch::kHalf),
                     without_data({3, 4}, torch::kFloat));
    EXPECT_EQ(chosen.sizes(), (std::vector<int64_t>{3, 4}));
    EXPECT_EQ(chosen.scalar_type(), torch::kFloat);
    const torch::Tensor x = without_data({2, 3, 8}).requires_grad_();
    const torch::Tensor scale = without_data({8}).requires_grad_();
    at::rms_norm(x, {8}, scale, 1e-5).sum().backward();
    EXPECT_EQ(x.grad().sizes(), x.sizes());
    EXPECT_EQ(scale.grad().sizes(), scale.sizes());
  });
}

TEST(MetaDevice, HeadSplitAttentionCommunicatesNothingAsOnTheCpu) {
  on_fake_ranks(4, [] {
    const torch::Tensor query = split_without_data({2, 8, 5, 6}, {Shard(1)}).requires_grad_();
    const torch::Tensor key = split_without_data({2, 4, 5, 6}, {Shard(1)}).requires_grad_();
    mt::CommDebugMode comm;
    const torch::Tensor result =
        at::scaled_dot_product_attention(query, key, key, {}, 0, /*is_causal=*/true, {}, /*enable_gqa=*/true);
    EXPECT_EQ(result.sizes(), query.sizes());
    EXPECT_EQ(DTensor(result).placements(), mt::Placements{Shard(1)});
    result.sum().backward();
    EXPECT_EQ(key.grad().sizes(), key.sizes());
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  });
}

TEST(MetaDevice, RealBackendsRefuseToSendNothing) {
  on_ranks(2, [](int) {
    EXPECT_EQ(error_of([] { mt::all_reduce(without_data({3}), "sum", {}); }),
              "meshtorch: `c10d::allreduce_` got tensors on the meta device, which have no data to send\n  "
              "backend: " +
                  mt::get_backend() + "\n  do: use the backend \"fake\", or give the tensors data");
    mt::barrier();  // nobody leaves before all have met
  });
}

TEST(MetaDevice, ModulesAreMadeWithoutMemory) {
  torch::nn::Sequential model{nullptr};
  {
    const mt::on_meta_device shapes_only;
    const mt::on_meta_device again;
    model = torch::nn::Sequential(mt::nn::Linear(1 << 20, 1 << 20), mt::nn::BatchNorm1d(3),
                                  mt::nn::Embedding(1 << 20, 1 << 20));
    EXPECT_TRUE(torch::zeros({2}).is_meta());
    EXPECT_TRUE(torch::randn({2}).is_meta());
    EXPECT_TRUE(torch::arange(4).is_meta());
    EXPECT_FALSE(torch::empty({2}, torch::kCPU).is_meta()) << "a device that is named is used";
    EXPECT_EQ(torch::tensor({1.0F, 2.0F}).sum().item<float>(), 3);
  }
  for (const torch::Tensor& parameter : model->parameters()) EXPECT_TRUE(parameter.is_meta());
  for (const auto& buffer : model->named_buffers()) {
    const bool is_made_of_a_value = buffer.key() == "1.num_batches_tracked";
    EXPECT_NE(buffer->is_meta(), is_made_of_a_value) << buffer.key();
  }
  EXPECT_FALSE(torch::zeros({2}).is_meta());
}

TEST(MetaDevice, OnlyTheShardGetsMemory) {
  on_ranks(2, [](int) {
    mt::nn::Linear layer{nullptr};
    {
      const mt::on_meta_device shapes_only;
      layer = mt::nn::Linear(6, 10);
    }
    mt::parallelize_module(*layer, line(2), mt::ColwiseParallel());
    const torch::Tensor weight = layer->weight;
    EXPECT_TRUE(mt::to_local(weight.detach()).is_meta());
    mt::materialize(*layer, torch::kCPU);
    EXPECT_TRUE(weight.is_same(layer->weight));
    EXPECT_TRUE(mt::to_local(weight.detach()).is_cpu());
    EXPECT_EQ(mt::to_local(weight.detach()).sizes(), at::IntArrayRef({5, 6}));
    const torch::NoGradGuard no_grad;
    for (torch::Tensor& parameter : layer->parameters()) parameter.fill_(0.5);
    EXPECT_TRUE(is_equal(layer(torch::ones({3, 6})), torch::full({3, 5}, 3.5F)));
  });
}

// A model that never exists whole: what initialisation draws does not depend on who draws it.
TEST(MetaDevice, ShardsAreFilledWithTheSameNumbersOnAnyMesh) {
  using Distribute = std::function<void(torch::nn::Sequential&)>;
  on_ranks(4, [](int) {
    const mt::DeviceMesh square = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const mt::DeviceMesh alone = mt::init_device_mesh(torch::kCPU, {4, 1}, {"all", "one"})["one"];
    const auto shard = [](const mt::DeviceMesh& mesh) -> Distribute {
      return [mesh](torch::nn::Sequential& model) {
        mt::fully_shard(*model[0], mesh);
        mt::fully_shard(*model[1], mesh);
      };
    };
    const auto drawn = [](const Distribute& distribute) {
      torch::nn::Sequential model{nullptr};
      {
        const mt::on_meta_device shapes_only;
        model = torch::nn::Sequential(mt::nn::Linear(6, 10), mt::nn::Linear(10, 7));
      }
      distribute(model);
      for (const torch::Tensor& p : model->parameters()) EXPECT_TRUE(mt::to_local(p.detach()).is_meta());
      mt::materialize(*model, torch::kCPU);
      mt::manual_seed(5);
      const torch::NoGradGuard no_grad;
      std::vector<torch::Tensor> wholes;
      for (torch::Tensor& p : model->parameters()) {
        p.normal_(0.0, 0.02);
        if (p.dim() > 1) p.add_(torch::nn::init::kaiming_uniform_(torch::empty_like(p)));
        wholes.push_back(mt::full_tensor(p.detach()));
      }
      return wholes;
    };
    const std::vector<torch::Tensor> expected = drawn(shard(alone));
    EXPECT_GT(expected[0].std().item<double>(), 0.01);
    const std::vector<Distribute> others{
        shard(line(4)), shard(square),
        [&](torch::nn::Sequential& model) {
          mt::replicate(*model[0], line(4)), mt::replicate(*model[1], line(4));
        },
        [&](torch::nn::Sequential& model) {
          mt::parallelize_module(*model[0], square["tp"], mt::ColwiseParallel());
          mt::parallelize_module(*model[1], square["tp"], mt::RowwiseParallel());
          shard(square["dp"])(model);
        }};
    for (std::size_t way = 0; way < others.size(); ++way) {
      const std::vector<torch::Tensor> found = drawn(others[way]);
      for (std::size_t i = 0; i < found.size(); ++i)
        EXPECT_TRUE(is_equal(found[i], expected[i])) << "way " << way << ", parameter " << i;
    }
  });
}

// What meshtorch makes for itself has data wherever it is made.
TEST(MetaDevice, TensorsThatNameAMeshAreMadeThere) {
  on_ranks(2, [](int) {
    const auto made = [] {
      mt::manual_seed(3);
      return std::vector<DTensor>{
          mt::arange(5, line(2), {Shard(0)}),
          mt::eye(3, line(2), {Shard(0)}),
          mt::randperm(7, line(2), {Shard(0)}),
          mt::randn({4, 3}, line(2), {Shard(0)}, torch::kBFloat16),
          mt::randint(9, {4, 3}, line(2), {Shard(0)}, torch::kInt),
          DTensor::from_local(torch::ones({2, 3}, torch::kCPU), line(2), {Shard(0)}, {.run_check = true}),
          mt::distribute_tensor(torch::ones({3, 3}, torch::kCPU), line(2), {mt::StridedShard(0, 2)})};
    };
    const std::vector<DTensor> expected = made();
    std::vector<DTensor> found;
    {
      const mt::on_meta_device shapes_only;
      found = made();
      mt::RngState::from_tensor(mt::get_rng_state().to_tensor());
      const DTensor whole = found[0].redistribute({Replicate()});
      mt::check_replicas(whole);
      EXPECT_EQ(whole.sum().item<int64_t>(), 10);
    }
    for (std::size_t i = 0; i < found.size(); ++i)
      EXPECT_TRUE(is_equal(found[i].full_tensor(), expected[i].full_tensor())) << i;
  });
}

}  // namespace
}  // namespace meshtorch::testing
