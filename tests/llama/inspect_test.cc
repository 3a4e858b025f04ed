// Inspection on shapes: what it counts is what ranks with data do.
#include "inspect.h"

#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

std::string text_of(const std::vector<llama::StepPhase>& phases) {
  std::string text;
  for (const auto& phase : phases) {
    for (const auto& [collective, s] : phase.counts.statistics()) {
      text += c10::str(phase.name, " ", mt::to_string(collective), " ", s.count, " ", s.bytes_sent, "\n");
    }
  }
  return text;
}

// Runs `body` as the rank 1 of a world without others.
void on_fake_rank(int world_size, const std::function<void()>& body) {
  mt::init_process_group(
      {.backend = "fake", .init_method = "tcp://none:0", .rank = 1, .world_size = world_size});
  const mt::implicit_replication plain_is_replicated;
  body();
  mt::destroy_process_group();
}

TEST(LlamaInspection, CollectivesEqualThoseOfRanksWithData) {
  if (ranks_are_processes()) GTEST_SKIP() << "the fake rank is none of theirs";
  const llama::Config config = tiny_config(8, 4);
  std::string expected, actual;
  on_mesh(2, 2, [&](const mt::DeviceMesh& mesh) {
    llama::Llama model = filled_model(config, torch::kFloat);
    llama::parallelize(model, mesh);
    const auto phases = llama::collectives_of_step(model, mesh, tokens(4, 6, config));
    if (mt::get_rank() == 1) expected = text_of(phases);
  });
  on_fake_rank(4, [&] {
    const mt::DeviceMesh mesh = llama::make_mesh({.dp = 2, .tp = 2});
    llama::Llama model(config);
    llama::parallelize(model, mesh);
    actual = text_of(llama::collectives_of_step(model, mesh, tokens(4, 6, config).to(torch::kMeta)));
  });
  EXPECT_EQ(actual, expected);
  EXPECT_NE(expected.find("forward reduce_scatter_tensor 5 "), std::string::npos) << expected;
}

TEST(LlamaInspection, LayersAreAddedUp) {
  if (ranks_are_processes()) GTEST_SKIP() << "the fake rank is none of theirs";
  on_fake_rank(6, [] {
    llama::Llama model(tiny_config(4, 4, 25), torch::kBFloat16);
    llama::parallelize(model, llama::make_mesh({.dp = 3, .tp = 2}));
    const auto lines = llama::parameters_of(*model);
    ASSERT_EQ(lines.size(), 12);
    EXPECT_EQ(lines[0].name, "model.embed_tokens.weight");
    EXPECT_EQ(lines[0].local_shape, (std::vector<int64_t>{12, 16}));
    const auto& q = lines[2];
    EXPECT_EQ(q.name, "model.layers.*.self_attn.q_proj.weight");
    EXPECT_EQ(q.count, 2);
    EXPECT_EQ(q.elements, 2 * 16 * 16);
    EXPECT_EQ(q.local_bytes, 2 * 8 * 16 * 2);
    EXPECT_EQ(q.placements, (mt::Placements{mt::Replicate(), mt::Shard(0)}));
  });
}

}  // namespace
}  // namespace meshtorch::testing
