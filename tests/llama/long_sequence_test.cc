// A Llama whose sequence is split over cp, alone and beside every other axis, equals one device: losses and
// gradients of a step, logits, text, and what inspection counts.
#include "generate.h"
#include "inspect.h"
#include "tiny_model.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;

using llama::MeshShape;
using mt::RotateMethod;

struct SequenceCase {
  const char* name;
  MeshShape shape;
  int64_t length;
  RotateMethod method = RotateMethod::automatic;
  bool sequence_parallel = true;
  torch::Dtype dtype = torch::kDouble;
};
std::ostream& operator<<(std::ostream& out, const SequenceCase& c) { return out << c.name; }

class LlamaLongSequence : public ::testing::TestWithParam<SequenceCase> {};

torch::Tensor mean_loss(const torch::Tensor& logits_BSV, const torch::Tensor& targets_BS) {
  return F::cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten(0, 1));
}

TEST_P(LlamaLongSequence, TrainsAsOneDevice) {
  const SequenceCase& c = GetParam();
  on_mesh(c.shape, [&](const mt::DeviceMesh& mesh) {
    mt::set_rotate_method(c.method);
    const double tolerance = c.dtype == torch::kDouble ? 1e-9 : 1e-5;
    const llama::Config config = tiny_config(8, 4);
    llama::Llama plain = filled_model(config, c.dtype);
    llama::Llama parallel = filled_model(config, c.dtype);
    llama::parallelize(parallel, mesh, {.sequence_parallel = c.sequence_parallel});
    for (int step = 0; step < 2; ++step) {
      const torch::Tensor ids_BS = tokens(4, c.length, config, step);
      const torch::Tensor targets_BS = tokens(4, c.length, config, 100 + step);
      plain->zero_grad();
      parallel->zero_grad();
      const torch::Tensor plain_loss = mean_loss(plain(ids_BS), targets_BS);
      plain_loss.backward();
      const mt::loss_parallel logits_stay_split;
      torch::Tensor loss;
      {
        const llama::TrainingBatch batch(ids_BS, targets_BS, mesh);
        loss =
            mean_loss(parallel(batch.ids_BS, nullptr, torch::Tensor(), batch.positions_BS), batch.targets_BS);
      }
      loss.backward();
      mt::reduce_gradients(parallel->parameters());
      ASSERT_NEAR(plain_loss.item<double>(), whole(loss).item<double>(), tolerance);
      const auto expected = plain->named_parameters();
      for (const auto& p : parallel->named_parameters()) {
        ASSERT_TRUE(is_close(whole(p.value().grad()), expected[p.key()].grad(), tolerance)) << p.key();
      }
    }
    mt::set_rotate_method(RotateMethod::automatic);
  });
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, LlamaLongSequence,
    ::testing::Values(SequenceCase{"Cp2", {.cp = 2}, 12, RotateMethod::allgather},
                      SequenceCase{"Cp2Ring", {.cp = 2}, 12, RotateMethod::ring},
                      SequenceCase{"Cp2Ulysses", {.cp = 2}, 12, RotateMethod::ulysses},
                      SequenceCase{"Cp2Float32", {.cp = 2}, 12, RotateMethod::ring, true, torch::kFloat},
                      SequenceCase{"Cp3Uneven", {.cp = 3}, 11, RotateMethod::ring},
                      SequenceCase{"Cp3Balanced", {.cp = 3}, 12, RotateMethod::allgather},
                      SequenceCase{"Cp4RanksWithoutRows", {.cp = 4}, 3, RotateMethod::allgather},
                      SequenceCase{"Cp4Balanced", {.cp = 4}, 16, RotateMethod::ring},
                      SequenceCase{"Cp4Ulysses", {.cp = 4}, 16, RotateMethod::ulysses},
                      SequenceCase{"Cp2Tp2", {.cp = 2, .tp = 2}, 12, RotateMethod::ring},
                      SequenceCase{
                          "Cp2Tp2WithoutSequence", {.cp = 2, .tp = 2}, 12, RotateMethod::ulysses, false},
                      SequenceCase{"Cp2Tp2Uneven", {.cp = 2, .tp = 2}, 7},
                      SequenceCase{"Dp2Cp2", {.dp = 2, .cp = 2}, 12, RotateMethod::ring},
                      SequenceCase{"Sharded2Cp2", {.cp = 2, .dp_shard = 2}, 12, RotateMethod::allgather},
                      SequenceCase{"Sharded2Cp2Ring", {.cp = 2, .dp_shard = 2}, 12, RotateMethod::ring}),
    [](const auto& each) { return each.param.name; });

INSTANTIATE_TEST_SUITE_P(
    EightRanks, LlamaLongSequence,
    ::testing::Values(SequenceCase{"Dp2Cp2Tp2", {.dp = 2, .cp = 2, .tp = 2}, 12, RotateMethod::ring},
                      SequenceCase{
                          "Sharded2Cp2Tp2", {.cp = 2, .tp = 2, .dp_shard = 2}, 12, RotateMethod::ulysses},
                      SequenceCase{"Replicated2Sharded2Cp2",
                                   {.cp = 2, .dp_shard = 2, .dp_replicate = 2},
                                   12,
                                   RotateMethod::allgather},
                      SequenceCase{"Cp4Tp2", {.cp = 4, .tp = 2}, 16, RotateMethod::ring}),
    [](const auto& each) { return each.param.name; });

TEST(LlamaLongPrompts, LogitsAndTextDoNotDependOnTheRanks) {
  const llama::Config config = tiny_config(8, 4, 25);
  const std::vector<std::vector<llama::Ids>> all_prompts{
      {{1, 5, 7, 2, 9, 11, 3}}, {{1, 5, 7, 2, 9}, {4}, {2, 3, 8}}, {{6}}};
  for (const std::vector<llama::Ids>& prompts : all_prompts) {
    const llama::GenerateOptions options{.max_new_tokens = 6, .sampling = {.temperature = 1.5, .seed = 3}};
    std::vector<llama::Ids> expected;
    torch::Tensor expected_logits;
    const auto run = [&](const mt::DeviceMesh& mesh, std::vector<llama::Ids>& text, torch::Tensor& logits) {
      llama::Llama model = filled_model(config);
      llama::parallelize(model, mesh, {.sequence_parallel = false});
      text = llama::generate(model, mesh, prompts, options);
      const torch::NoGradGuard no_grad;
      const llama::PromptBatch batch = llama::make_batch(prompts);
      logits = whole(model(llama::distribute_batch(batch.ids_BS, mesh), nullptr, batch.pads_B));
    };
    spawn(1, [&](int) {
      const mt::implicit_replication plain_is_replicated;
      run(llama::make_mesh({}), expected, expected_logits);
    });
    for (const MeshShape& shape :
         {MeshShape{.cp = 2}, MeshShape{.cp = 3}, MeshShape{.cp = 2, .tp = 2}, MeshShape{.dp = 2, .cp = 2}}) {
      on_mesh(shape, [&](const mt::DeviceMesh& mesh) {
        std::vector<llama::Ids> text;
        torch::Tensor logits;
        run(mesh, text, logits);
        EXPECT_EQ(text, expected) << shape.to_string();
        EXPECT_TRUE(is_close(logits, expected_logits, 1e-9)) << shape.to_string();
      });
    }
  }
}

// The sequence is not gathered: forward sends the keys and values of each layer and nothing else.
TEST(LlamaLongPrompts, APromptSendsItsKeysAndValuesOnly) {
  on_mesh(MeshShape{.cp = 2}, [](const mt::DeviceMesh& mesh) {
    mt::set_rotate_method(RotateMethod::allgather);
    const torch::NoGradGuard no_grad;
    const llama::Config config = tiny_config(8, 4);
    llama::Llama model = filled_model(config);
    llama::parallelize(model, mesh, {.sequence_parallel = false});
    const mt::DTensor ids_BS = llama::distribute_batch(tokens(1, 12, config), mesh);
    const mt::CommDebugMode comm;
    model(ids_BS);
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], config.num_layers);
    EXPECT_EQ(comm.get_total_counts(), config.num_layers) << comm.module_table();
    mt::set_rotate_method(RotateMethod::automatic);
  });
}

std::string collectives_on(const mt::DeviceMesh& mesh, llama::Llama model, const torch::Tensor& ids_BS) {
  llama::parallelize(model, mesh);
  std::string text;
  for (const auto& phase : llama::collectives_of_step(model, mesh, ids_BS)) {
    for (const auto& [collective, s] : phase.counts.statistics())
      text += c10::str(phase.name, " ", mt::to_string(collective), " ", s.count, " ", s.bytes_sent, "\n");
  }
  return text;
}

TEST(LlamaLongPrompts, InspectionCountsWhatRanksWithDataDo) {
  if (ranks_are_processes()) GTEST_SKIP() << "the fake rank is none of theirs";
  const llama::Config config = tiny_config(8, 4);
  for (const MeshShape& shape :
       {MeshShape{.cp = 2, .tp = 2}, MeshShape{.cp = 2, .dp_shard = 2}, MeshShape{.dp = 2, .cp = 2}}) {
    std::string expected;
    std::string actual;
    on_mesh(shape, [&](const mt::DeviceMesh& mesh) {
      const std::string text =
          collectives_on(mesh, filled_model(config, torch::kFloat), tokens(4, 12, config));
      if (mt::get_rank() == 1) expected = text;
    });
    mt::init_process_group({.backend = "fake", .init_method = "tcp://none:0", .rank = 1, .world_size = 4});
    {
      const mt::implicit_replication plain_is_replicated;
      actual = collectives_on(llama::make_mesh(shape), llama::Llama(config),
                              tokens(4, 12, config).to(torch::kMeta));
    }
    mt::destroy_process_group();
    EXPECT_EQ(actual, expected) << shape.to_string();
    EXPECT_NE(expected, "");
  }
}

}  // namespace
}  // namespace meshtorch::testing
