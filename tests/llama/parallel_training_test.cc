// A Llama on a mesh trains as on one device, for heads, vocabularies and sequences that the ranks share
// unevenly.
#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;

torch::Tensor loss_of(llama::Llama model, const torch::Tensor& ids_BS, const torch::Tensor& targets_BS) {
  const torch::Tensor logits_BSV = model(ids_BS);
  return F::cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten(0, 1));
}

void expect_same_training(llama::Llama plain, llama::Llama parallel, const mt::DeviceMesh& mesh,
                          int64_t batch, int64_t length) {
  torch::optim::AdamW plain_adam(plain->parameters(), torch::optim::AdamWOptions(1e-2));
  torch::optim::AdamW parallel_adam(parallel->parameters(), torch::optim::AdamWOptions(1e-2));
  for (int step = 0; step < 3; ++step) {
    const torch::Tensor ids_BS = tokens(batch, length, plain->config, step);
    const torch::Tensor targets_BS = tokens(batch, length, plain->config, step + 100);
    plain_adam.zero_grad();
    parallel_adam.zero_grad();
    const torch::Tensor plain_loss = loss_of(plain, ids_BS, targets_BS);
    plain_loss.backward();
    const mt::loss_parallel scope;
    const torch::Tensor loss =
        loss_of(parallel, llama::distribute_batch(ids_BS, mesh), llama::distribute_batch(targets_BS, mesh));
    loss.backward();
    mt::reduce_gradients(parallel->parameters());
    ASSERT_NEAR(plain_loss.item<double>(), whole(loss).item<double>(), 1e-10) << "step " << step;
    const auto expected = plain->named_parameters();
    for (const auto& p : parallel->named_parameters()) {
      ASSERT_TRUE(is_close(whole(p.value().grad()), expected[p.key()].grad(), 1e-9))
          << p.key() << ", step " << step;
    }
    plain_adam.step();
    parallel_adam.step();
  }
}

struct Case {
  const char* name;
  int dp, tp;
  int64_t heads, kv_heads, vocab, length;
  bool tied = false, bias = false, sequence_parallel = true;
};
std::ostream& operator<<(std::ostream& out, const Case& c) { return out << c.name; }

class LlamaTraining : public ::testing::TestWithParam<Case> {};

TEST_P(LlamaTraining, EqualsOneDevice) {
  const Case c = GetParam();
  on_mesh(c.dp, c.tp, [&](const mt::DeviceMesh& mesh) {
    llama::Config config = tiny_config(c.heads, c.kv_heads, c.vocab);
    config.tie_word_embeddings = c.tied;
    config.attention_bias = config.mlp_bias = c.bias;
    llama::Llama parallel = filled_model(config);
    llama::parallelize(parallel, mesh, {.sequence_parallel = c.sequence_parallel});
    expect_same_training(filled_model(config), parallel, mesh, /*batch=*/4, c.length);
  });
}

INSTANTIATE_TEST_SUITE_P(Meshes, LlamaTraining,
                         ::testing::Values(Case{"OneRank", 1, 1, 4, 4, 24, 6}, Case{"Tp2", 1, 2, 4, 4, 24, 6},
                                           Case{"Tp4Grouped", 1, 4, 8, 4, 24, 8},
                                           Case{"Dp2Tp2TiedWithBiases", 2, 2, 4, 2, 24, 6, true, true},
                                           Case{"Tp2WithoutSequence", 1, 2, 4, 2, 24, 5, false, true, false},
                                           Case{"Tp2UnevenHeadsVocabularyAndLength", 1, 2, 3, 3, 25, 5},
                                           Case{"Tp2UnevenGroups", 1, 2, 6, 3, 23, 7, true},
                                           Case{"Tp4Uneven", 1, 4, 6, 6, 21, 3},
                                           Case{"Tp4UnevenGroups", 1, 4, 10, 5, 22, 5, false, true},
                                           Case{"Tp4TwoKeyHeads", 1, 4, 8, 2, 24, 8},
                                           Case{"Tp4OneKeyHead", 1, 4, 4, 1, 24, 6, true, true},
                                           Case{"Tp3TwoKeyHeads", 1, 3, 4, 2, 24, 5},
                                           Case{"Dp2Tp2OneKeyHead", 2, 2, 4, 1, 24, 6, false, false, false}),
                         [](const auto& instance) { return instance.param.name; });

TEST(LlamaSharded, TrainsAsOneDeviceOverDataTensorAndSequence) {
  for (const auto& [dp_replicate, dp_shard, tp] :
       {std::array<int, 3>{1, 2, 1}, std::array<int, 3>{1, 2, 2}, std::array<int, 3>{2, 2, 1}}) {
    on_ranks(dp_replicate * dp_shard * tp, [&, replicas = dp_replicate, shards = dp_shard, t = tp](int) {
      const mt::implicit_replication plain_is_replicated;
      const mt::DeviceMesh mesh = llama::make_mesh({.tp = t, .dp_shard = shards, .dp_replicate = replicas});
      const llama::Config config = tiny_config(4, 2, 24);
      llama::Llama parallel = filled_model(config);
      llama::parallelize(parallel, mesh);
      expect_same_training(filled_model(config), parallel, mesh, /*batch=*/4, /*length=*/6);
    });
  }
}

TEST(LlamaSharded, EachLayerIsGatheredTwiceAndReducedOnce) {
  on_ranks(2, [](int) {
    const mt::implicit_replication plain_is_replicated;
    const mt::DeviceMesh mesh = llama::make_mesh({.dp_shard = 2});
    const llama::Config config = tiny_config(4, 4);
    llama::Llama model = filled_model(config);
    llama::parallelize(model, mesh, {.sequence_parallel = false});
    const mt::DTensor ids_BS = llama::distribute_batch(tokens(2, 6, config), mesh);
    const mt::CommDebugMode comm;
    model(ids_BS).square().sum().backward();
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], 2 * config.num_layers + 1)
        << comm.module_table();
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::reduce_scatter_tensor_coalesced], config.num_layers + 1)
        << comm.module_table();
  });
}

TEST(LlamaParallel, HeadSplitAttentionNeedsNoGathering) {
  on_mesh(1, 4, [](const mt::DeviceMesh& mesh) {
    const llama::Config config = tiny_config(8, 4);
    llama::Llama model = filled_model(config);
    llama::parallelize(model, mesh, {.sequence_parallel = false});
    const mt::DTensor ids_BS = llama::distribute_batch(tokens(2, 6, config), mesh);
    mt::CommDebugMode comm;
    const torch::Tensor logits_BSV = model(ids_BS);
    comm.stop();
    // One for the embedding, two a layer.
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_reduce], 1 + 2 * config.num_layers)
        << comm.module_table();
    EXPECT_EQ(comm.get_total_counts(), 1 + 2 * config.num_layers) << comm.module_table();
    EXPECT_EQ(mt::DTensor(logits_BSV).placements(), (mt::Placements{mt::Shard(0), mt::Shard(2)}));
  });
}

TEST(LlamaParallel, SequenceParallelStepSendsOneGatherAndOneScatterForEachHalfLayer) {
  on_mesh(1, 4, [](const mt::DeviceMesh& mesh) {
    const llama::Config config = tiny_config(8, 4);
    llama::Llama model = filled_model(config);
    llama::parallelize(model, mesh);
    const mt::DTensor ids_BS = llama::distribute_batch(tokens(2, 8, config), mesh);
    mt::CommDebugMode comm;
    const torch::Tensor logits_BSV = model(ids_BS);
    comm.stop();
    const mt::CommCounts& counts = comm.get_comm_counts();
    EXPECT_EQ(counts[mt::Collective::all_gather_into_tensor], 2 * config.num_layers + 1)
        << comm.module_table();
    EXPECT_EQ(counts[mt::Collective::reduce_scatter_tensor], 2 * config.num_layers + 1)
        << comm.module_table();
    EXPECT_EQ(counts.total(), 2 * (2 * config.num_layers + 1)) << comm.module_table();
  });
}

TEST(LlamaParallel, AHeadOfKeysThatRanksShareIsOnEachOfThemAndNoQueriesAreGathered) {
  on_mesh(1, 4, [](const mt::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(8, 2);
    llama::Llama model = filled_model(config);
    llama::parallelize(model, mesh, {.sequence_parallel = false});
    llama::KvCache cache;
    mt::CommDebugMode comm;
    model(llama::distribute_batch(tokens(2, 6, config), mesh), &cache);
    comm.stop();
    const mt::DTensor keys(cache.layers[0].keys_BKTC);
    EXPECT_EQ(keys.to_local().size(1), 1);
    EXPECT_EQ(mt::DTensor(model->model->layers[0]->self_attn->k_proj->weight).to_local().size(0), 2);
    const mt::CommCounts& counts = comm.get_comm_counts();
    EXPECT_EQ(counts[mt::Collective::all_reduce], 1 + 2 * config.num_layers) << comm.module_table();
    EXPECT_EQ(counts[mt::Collective::all_gather_into_tensor], 2 * config.num_layers) << comm.module_table();
    EXPECT_EQ(counts.total(), 1 + 4 * config.num_layers) << comm.module_table();
  });
}

TEST(LlamaParallel, RandomWeightsDoNotDependOnTheMesh) {
  const auto weights_on = [](int dp, int tp) {
    torch::Tensor q;
    on_mesh(dp, tp, [&](const mt::DeviceMesh& mesh) {
      llama::Llama model(tiny_config(6, 3));
      llama::parallelize(model, mesh);
      mt::manual_seed(7);
      llama::initialize(*model);
      const torch::Tensor weight = whole(model->model->layers[1]->self_attn->q_proj->weight);
      if (mt::get_rank() == 0) q = weight;
    });
    return q;
  };
  const torch::Tensor alone = weights_on(1, 1), square = weights_on(2, 2), row = weights_on(1, 3);
  if (!alone.defined()) return;  // processes other than rank 0 only took part
  EXPECT_NEAR(alone.std().item<double>(), 0.02, 0.002);
  EXPECT_TRUE(is_equal(square, alone));
  EXPECT_TRUE(is_equal(row, alone));
}

}  // namespace
}  // namespace meshtorch::testing
