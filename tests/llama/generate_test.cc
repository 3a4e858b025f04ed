// Generation: the cache changes nothing, its heads are split, and the text does not depend on the number of
// ranks.
#include "generate.h"

#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

using llama::Ids;

llama::Llama parallel_model(const llama::Config& config, const mt::DeviceMesh& mesh) {
  llama::Llama model = filled_model(config, torch::kFloat);
  llama::parallelize(model, mesh, {.sequence_parallel = false});
  return model;
}

// What one rank generates and all ranks of a mesh do too.
void expect_same_on_meshes(const llama::Config& config, const std::vector<Ids>& prompts,
                           const llama::GenerateOptions& options,
                           const std::vector<std::pair<int, int>>& meshes) {
  std::vector<Ids> expected;
  spawn(1, [&](int) {
    const mt::DeviceMesh mesh = llama::make_mesh({});
    expected = llama::generate(parallel_model(config, mesh), mesh, prompts, options);
  });
  for (const auto& [dp, tp] : meshes) {
    on_mesh(dp, tp, [&](const mt::DeviceMesh& mesh) {
      EXPECT_EQ(llama::generate(parallel_model(config, mesh), mesh, prompts, options), expected) << mesh;
    });
  }
}

TEST(LlamaCache, TokenByTokenEqualsAllAtOnceAndHeadsAreSplit) {
  on_mesh(1, 2, [](const mt::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(4, 2);
    llama::Llama model = parallel_model(config, mesh);
    const torch::Tensor ids_BS = tokens(2, 7, config);
    const torch::Tensor expected = whole(model(llama::distribute_batch(ids_BS, mesh)));
    llama::KvCache cache;
    std::vector<torch::Tensor> parts;
    for (const auto& [begin, size] : {std::pair{0, 3}, {3, 1}, {4, 1}, {5, 2}}) {
      parts.push_back(whole(model(llama::distribute_batch(ids_BS.narrow(1, begin, size), mesh), &cache)));
    }
    EXPECT_TRUE(is_close(torch::cat(parts, 1), expected, 1e-5));
    EXPECT_EQ(cache.length, 7);
    const mt::DTensor keys(cache.layers[1].keys_BKTC);
    EXPECT_EQ(cache.layers[1].length, 7);
    EXPECT_EQ(keys.sizes(), (std::vector<int64_t>{2, 2, 10, 4})) << "with room for more";
    EXPECT_EQ(keys.placements(), (mt::Placements{mt::Shard(0), mt::Shard(1)}));
  });
}

TEST(LlamaCache, GrowsInPlace) {
  on_mesh(1, 2, [](const mt::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(4, 2);
    llama::Llama model = parallel_model(config, mesh);
    llama::KvCache cache;
    const auto place_after = [&](int64_t tokens_more) {
      model(llama::distribute_batch(tokens(1, tokens_more, config), mesh), &cache);
      return mt::DTensor(cache.layers[0].keys_BKTC).to_local().const_data_ptr();
    };
    place_after(4);
    const void* place = place_after(1);
    for (int64_t length = 6; length <= 8; ++length) EXPECT_EQ(place_after(1), place) << "length " << length;
    EXPECT_NE(place_after(1), place) << "there was room for 8";
    EXPECT_EQ(cache.length, 9);
  });
}

TEST(LlamaCache, IsRefusedWhereGradientsAreRecorded) {
  on_mesh(1, 1, [](const mt::DeviceMesh& mesh) {
    const llama::Config config = tiny_config(4, 2);
    llama::Llama model = parallel_model(config, mesh);
    llama::KvCache cache;
    EXPECT_THROW(model(llama::distribute_batch(tokens(1, 4, config), mesh), &cache), c10::ValueError);
  });
}

TEST(LlamaCache, DecodingOneTokenNeedsNoGathering) {
  on_mesh(1, 2, [](const mt::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(4, 2);
    llama::Llama model = parallel_model(config, mesh);
    llama::KvCache cache;
    model(llama::distribute_batch(tokens(1, 5, config), mesh), &cache);
    mt::CommDebugMode comm;
    model(llama::distribute_batch(tokens(1, 1, config), mesh), &cache);
    comm.stop();
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_reduce], 1 + 2 * config.num_layers);
    EXPECT_EQ(comm.get_total_counts(), 1 + 2 * config.num_layers) << comm.module_table();
  });
}

TEST(LlamaPadding, RowsOfABatchEqualThePromptsAlone) {
  on_mesh(1, 2, [](const mt::DeviceMesh& mesh) {
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(3, 3, 25);
    llama::Llama model = parallel_model(config, mesh);
    const std::vector<Ids> prompts{{1, 5, 7, 2}, {9}, {24, 3}};
    const llama::PromptBatch batch = llama::make_batch(prompts);
    const torch::Tensor together =
        whole(model(llama::distribute_batch(batch.ids_BS, mesh), nullptr, batch.pads_B));
    for (std::size_t row = 0; row < prompts.size(); ++row) {
      const llama::PromptBatch alone = llama::make_batch({prompts[row]});
      const torch::Tensor expected = whole(model(llama::distribute_batch(alone.ids_BS, mesh)));
      const auto size = static_cast<int64_t>(prompts[row].size());
      EXPECT_TRUE(is_close(together.narrow(0, static_cast<int64_t>(row), 1).narrow(1, 4 - size, size),
                           expected, 1e-5))
          << "row " << row;
    }
  });
}

TEST(LlamaGenerate, GreedyTextDoesNotDependOnTheRanks) {
  expect_same_on_meshes(tiny_config(8, 4, 25), {{1, 5, 7}},
                        {.max_new_tokens = 9, .sampling = {.greedy = true}},
                        {{1, 2}, {1, 3}, {1, 4}, {2, 2}});
}

TEST(LlamaGenerate, FewerHeadsOfKeysThanRanksChangeNothing) {
  const llama::GenerateOptions options{.max_new_tokens = 6, .sampling = {.greedy = true}};
  expect_same_on_meshes(tiny_config(8, 2, 25), {{1, 5, 7}, {4}}, options, {{1, 3}, {1, 4}});
  expect_same_on_meshes(tiny_config(4, 1, 25), {{1, 5, 7}}, options, {{1, 2}, {2, 2}});
}

TEST(LlamaGenerate, SampledTextDoesNotDependOnTheRanks) {
  const llama::SamplingOptions sampling{.temperature = 1.5, .top_k = 20, .top_p = 0.9, .seed = 11};
  expect_same_on_meshes(tiny_config(6, 3, 23), {{1, 5, 7}, {4}, {2, 3}},
                        {.max_new_tokens = 6, .sampling = sampling}, {{1, 2}, {1, 3}, {2, 1}, {2, 2}});
}

TEST(LlamaGenerate, AnEndTokenEndsItsRowOnly) {
  on_mesh(1, 1, [](const mt::DeviceMesh& mesh) {
    llama::Config config = tiny_config();
    const std::vector<Ids> prompts{{1, 5, 7}, {3}};
    const llama::GenerateOptions options{.max_new_tokens = 8, .sampling = {.seed = 3}};
    const std::vector<Ids> endless = llama::generate(parallel_model(config, mesh), mesh, prompts, options);
    ASSERT_EQ(endless[0].size(), 8);
    config.eos_token_ids = {1000, endless[0][2]};
    std::vector<Ids> streamed(2);
    llama::GenerateOptions streaming = options;
    streaming.on_token = [&](std::size_t row, int64_t id) { streamed[row].push_back(id); };
    const std::vector<Ids> ended = llama::generate(parallel_model(config, mesh), mesh, prompts, streaming);
    for (std::size_t row = 0; row < 2; ++row) {
      Ids expected = endless[row];
      const auto end = std::find(expected.begin(), expected.end(), endless[0][2]);
      if (end != expected.end()) expected.erase(end + 1, expected.end());
      EXPECT_EQ(ended[row], expected) << "row " << row;
    }
    EXPECT_LE(ended[0].size(), 3);
    EXPECT_EQ(streamed, ended);
  });
}

TEST(LlamaGenerate, WhatAPromptGivesDoesNotDependOnThePromptsBesideIt) {
  on_mesh(1, 1, [](const mt::DeviceMesh& mesh) {
    const llama::Llama model = parallel_model(tiny_config(), mesh);
    const llama::GenerateOptions options{.max_new_tokens = 5, .sampling = {.seed = 5}};
    const auto alone = llama::generate(model, mesh, {{2, 3}}, options);
    const auto beside = llama::generate(model, mesh, {{2, 3}, {1, 5, 7, 8}}, options);
    EXPECT_EQ(beside[0], alone[0]);
  });
}

}  // namespace
}  // namespace meshtorch::testing
