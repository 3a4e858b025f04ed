// A fully sharded Llama starts from random numbers and from Hugging Face checkpoints as any other: shard by
// shard, whatever the mesh.
#include "checkpoint_files.h"
#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

// Copies, shards, and ranks of tensor parallelism.
using Sharding = std::array<int, 3>;
const std::vector<Sharding> kShardings{{1, 2, 1}, {1, 4, 1}, {2, 2, 1}, {1, 2, 2}};

void on_sharding(const Sharding& sharding, const std::function<void(const mt::DeviceMesh&)>& body) {
  const auto [replicas, shards, tp] = sharding;
  on_mesh({.tp = tp, .dp_shard = shards, .dp_replicate = replicas}, body);
}

// The largest share of the elements that this rank holds of a parameter of dim 2.
void expect_split(const torch::Tensor& parameter, int64_t parts) {
  ASSERT_TRUE(mt::is_dtensor(parameter));
  EXPECT_LE(mt::to_local(parameter).numel() * parts, parameter.numel() + parts * parameter.size(-1));
}

TEST(LlamaShardedStart, RandomWeightsAreThoseOfOneDevice) {
  const llama::Config config = tiny_config(6, 3);
  std::map<std::string, torch::Tensor> alone;
  on_mesh(1, 1, [&](const mt::DeviceMesh& mesh) {
    llama::Llama model(config);
    llama::parallelize(model, mesh);
    mt::manual_seed(7);
    llama::initialize(*model);
    for (const auto& p : model->named_parameters()) alone[p.key()] = whole(p.value()).clone();
  });
  for (const Sharding& sharding : kShardings) {
    on_sharding(sharding, [&](const mt::DeviceMesh& mesh) {
      llama::Llama model(config);
      llama::parallelize(model, mesh);
      for (const torch::Tensor& p : model->parameters()) ASSERT_TRUE(mt::to_local(p).is_meta());
      mt::manual_seed(7);
      llama::initialize(*model);
      for (const auto& p : model->named_parameters()) {
        const torch::Tensor all = whole(p.value());
        if (alone.empty()) continue;  // a process that took no part in the first run
        EXPECT_TRUE(is_equal(all, alone[p.key()])) << p.key();
      }
      expect_split(model->model->layers[0]->self_attn->q_proj->weight, sharding[1] * sharding[2]);
    });
  }
}

TEST(LlamaShardedStart, CheckpointsAreReadIntoShards) {
  const TemporaryDirectory directory;
  const llama::Config config = tiny_config(6, 3, 25);
  write_checkpoint(directory.path(), config);
  const auto expected = filled_model(config, torch::kFloat)->named_parameters();
  for (const Sharding& sharding : kShardings) {
    on_sharding(sharding, [&](const mt::DeviceMesh& mesh) {
      const llama::Llama model = llama::load_model(directory.path(), mesh, torch::kFloat);
      for (const auto& p : model->named_parameters())
        EXPECT_TRUE(is_equal(whole(p.value()), expected[p.key()].detach())) << p.key();
      expect_split(model->model->layers[0]->self_attn->q_proj->weight, sharding[1] * sharding[2]);
    });
  }
}

}  // namespace
}  // namespace meshtorch::testing
