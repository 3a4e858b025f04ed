// meshtorch-llama train: equal losses on every mesh, resuming on another one, and what it writes.
#include <gtest/gtest.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>
#include <sstream>

#include "../unit/temporary_file.h"
#include "llama_command.h"

namespace llama {
namespace {

constexpr double kFloat64 = 1e-9, kFloat32 = 1e-4;

std::vector<StepRecord> losses_on(const Ranks& ranks, const std::string& arguments, int rows = 4) {
  const TemporaryFile log("log.jsonl");
  train_tiny(ranks, arguments + " --log " + log.path().string(), rows);
  return read_log(log.path());
}

// The training on one rank, run once for all tests.
const std::vector<StepRecord>& alone(const std::string& arguments) {
  static std::map<std::string, std::vector<StepRecord>> known;
  auto found = known.find(arguments);
  if (found == known.end()) found = known.emplace(arguments, losses_on({}, arguments)).first;
  return found->second;
}

class EqualLosses : public ::testing::TestWithParam<Ranks> {};

TEST_P(EqualLosses, InFloat64) {
  const std::string fifty_steps = "--steps 50 --dtype float64";
  ASSERT_EQ(alone(fifty_steps).size(), 50u);
  EXPECT_LT(alone(fifty_steps).back().loss, 0.8 * alone(fifty_steps).front().loss);
  expect_equal_losses(losses_on(GetParam(), fifty_steps), alone(fifty_steps), kFloat64);
}

TEST_P(EqualLosses, InFloat32) {
  const std::string fifty_steps = "--steps 50 --dtype float32";
  ASSERT_EQ(alone(fifty_steps).size(), 50u);
  expect_equal_losses(losses_on(GetParam(), fifty_steps), alone(fifty_steps), kFloat32);
}

INSTANTIATE_TEST_SUITE_P(Meshes, EqualLosses,
                         ::testing::Values(Ranks{1, 2}, Ranks{1, 4}, Ranks{2, 2}, Ranks{1, 1, true},
                                           Ranks{1, 2, true}, Ranks{1, 4, true}, Ranks{2, 2, true}),
                         [](const auto& tested) { return tested.param.name(); });

// A sequence of 13 tokens in its own order, one of 12 balanced.
TEST(Train, SequencesThatRanksShareGiveTheSameLosses) {
  const std::string arguments = "--steps 8 --dtype float64";
  for (const Ranks& ranks : {Ranks{.cp = 2}, Ranks{.cp = 3}, Ranks{.dp = 2, .cp = 2, .sharded = true}})
    expect_equal_losses(losses_on(ranks, arguments), alone(arguments), kFloat64);
  const std::string even = arguments + " --sequence-length 12";
  expect_equal_losses(losses_on({.dp = 2, .tp = 2, .cp = 2}, even), alone(even), kFloat64);
  expect_equal_losses(losses_on({.tp = 2, .cp = 2}, even + " --accumulate 2"), alone(even), kFloat64);
  expect_equal_losses(losses_on({.tp = 2, .processes = true, .cp = 2}, even), alone(even), kFloat64);
}

TEST(Train, AccumulatedPartsOfABatchGiveTheSameLosses) {
  const std::string arguments = "--steps 8 --dtype float64";
  expect_equal_losses(losses_on({2, 2}, arguments + " --accumulate 3", 6), losses_on({}, arguments, 6),
                      kFloat64);
}

TEST(Train, RowsThatDpSharesUnevenlyGiveTheSameLosses) {
  const std::string arguments = "--steps 4 --dtype float64";
  expect_equal_losses(losses_on({2, 2}, arguments, 5), losses_on({}, arguments, 5), kFloat64);
}

TEST(Train, ATiedOutputGivesTheSameLosses) {
  const std::string arguments = "--steps 8 --dtype float64 --tied";
  expect_equal_losses(losses_on({2, 2}, arguments), losses_on({}, arguments), kFloat64);
}

TEST(Train, GoesOnOnAnotherMeshAsIfItHadNotStopped) {
  const TemporaryFile log("log.jsonl");
  const std::string state = (log.path().parent_path() / "state").string();
  const std::string arguments =
      "--steps 30 --dtype float64 --checkpoint " + state + " --log " + log.path().string();
  train_tiny({1, 4}, arguments + " --stop-after 20");
  EXPECT_EQ(read_log(log.path()).size(), 20u);
  train_tiny({2, 1, true}, arguments + " --resume --stop-after 25 --checkpoint-every 2");
  EXPECT_EQ(read_log(log.path()).size(), 25u);
  train_tiny({1, 3}, arguments + " --resume");
  expect_equal_losses(read_log(log.path()), alone("--steps 30 --dtype float64"), kFloat64);
}

// In the first run, rank 1 is killed as soon as a checkpoint is complete.
TEST(Train, GoesOnByItselfAfterARankWasKilled) {
  const TemporaryFile log("log.jsonl");
  const std::filesystem::path folder = log.path().parent_path();
  const std::string state = (folder / "state").string();
  const std::string train = MESHTORCH_LLAMA_BINARY
                            " train --data " MESHTORCH_DEMO_TEXT
                            " --hidden-size 16 --intermediate-size 21 --layers 2 --heads 8 --kv-heads 4 "
                            "--sequence-length 13 --vocab-size 257 --batch-size 4 --steps 50 --dtype float64 "
                            "--tp 2 --checkpoint-every 2 --resume auto --checkpoint " +
                            state + " --log " + log.path().string();
  const std::filesystem::path script = folder / "rank.sh";
  std::ofstream(script)
      << "if [ $MESHTORCH_RESTART = 0 ] && [ $RANK = 1 ]; then\n"
      << train << " & rank=$!\nuntil ls " << state
      << "/checkpoint.json >/dev/null 2>&1; do sleep 0.01; done\nkill -9 $rank\nwait $rank\nexit 9\nfi\nexec "
      << train << "\n";
  const CommandResult result = run_shell("OMP_WAIT_POLICY=passive timeout 100 " MESHTORCH_RUN_BINARY
                                         " -n 2 --timeout 45 --max-restarts 1 sh " +
                                         script.string());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("meshtorch-run: starting all ranks again, 1 of at most 1 times"),
            std::string::npos)
      << result.output;
  EXPECT_NE(result.output.find(" steps are done"), std::string::npos) << result.output;
  expect_equal_losses(read_log(log.path()), alone("--steps 50 --dtype float64"), kFloat64);
}

TEST(Train, ResumingWithoutACheckpointIsAnError) {
  const CommandResult result =
      run_llama({1, 2}, "train --data " MESHTORCH_DEMO_TEXT " --resume --checkpoint no/such/state");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output,
            "meshtorch-llama: there is no checkpoint in \"no/such/state\"\n  options --resume and "
            "--checkpoint\n  do: "
            "name the directory of an earlier run, or leave --resume out to start anew\n");
}

TEST(Train, ALossThatIsNotFiniteStopsWithACheckpoint) {
  const TemporaryFile log("log.jsonl");
  const std::string state = (log.path().parent_path() / "state").string();
  const std::string arguments = "train --data " MESHTORCH_DEMO_TEXT
                                " --steps 9 --hidden-size 16 --layers 1 --warmup 0 --checkpoint " +
                                state;
  const CommandResult result = run_llama({1, 2}, arguments + " --learning-rate 1e36 --clip 0");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("meshtorch-llama: step 2 has loss "), std::string::npos) << result.output;
  EXPECT_NE(result.output.find(": the training cannot go on\n  the state before that step is in " + state +
                               "-not-finite\n  do: go on from there with --checkpoint " + state +
                               "-not-finite --resume and a lower --learning-rate\n"),
            std::string::npos)
      << result.output;
  const CommandResult again =
      run_llama({2, 1}, arguments + "-not-finite --resume --learning-rate 1e36 --clip 0");
  EXPECT_NE(again.output.find("1 steps are done"), std::string::npos) << again.output;
}

TEST(Train, ALossThatIsNotFiniteWithoutACheckpointWritesNothing) {
  const CommandResult result = run_llama({1, 2}, "train --data " MESHTORCH_DEMO_TEXT
                                                 " --steps 9 --hidden-size 16 --layers 1 --warmup 0 "
                                                 "--learning-rate 1e36 --clip 0");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("there is no checkpoint of the state before that step\n  do: start again"),
            std::string::npos)
      << result.output;
  EXPECT_FALSE(std::filesystem::exists("-not-finite"));
}

// A sequence-parallel Llama; docs/llama_training.md has the same by hand.
TEST(Train, AStepCommunicatesWhatTheHandCountSays) {
  const CommandResult result = run_llama(
      {2, 2}, "train --data " MESHTORCH_DEMO_TEXT
              " --steps 1 --hidden-size 16 --layers 2 --batch-size 4 --sequence-length 12 --comm-table");
  ASSERT_EQ(result.exit_code, 0) << result.output;
  std::map<std::string, int> counts;
  std::istringstream lines(result.output);
  for (std::string line; std::getline(lines, line);) {
    std::istringstream words(line);
    std::string name;
    int count = 0;
    if (words >> name >> count) counts.emplace(name, count);
  }
  constexpr int kLayers = 2;
  // Attention and MLP gather the sequence forward, and so do the gradients of their scattered results; the
  // output gathers forward, the embedding's gradient backward.
  EXPECT_EQ(counts["all_gather_into_tensor"], 2 * (2 * kLayers) + 2) << result.output;
  EXPECT_EQ(counts["reduce_scatter_tensor"], 2 * (2 * kLayers) + 2) << result.output;
  // Gradients over dp: of split parameters, and of the norms, which are pending over tp too.
  EXPECT_EQ(counts["all_reduce_coalesced"], 2) << result.output;
  // Largest logit, sum of exponentials and chosen logit over tp; rows and loss over dp; the gradients' norm.
  EXPECT_EQ(counts["all_reduce"], 6) << result.output;
}

TEST(Train, WritesTraceAndLossCurve) {
  const TemporaryFile trace("trace.json"), svg("loss.svg");
  train_tiny({2, 2}, "--steps 6 --trace " + trace.path().string() + " --svg " + svg.path().string());
  std::map<int, int> updates;
  const nlohmann::json all = nlohmann::json::parse(trace.content());
  for (const auto& event : all.at("traceEvents")) {
    if (event.at("name") == "update") updates[event.at("pid")] += 1;
  }
  EXPECT_EQ(updates, (std::map<int, int>{{0, 2}, {1, 2}, {2, 2}, {3, 2}})) << "two steps of each rank";
  EXPECT_NE(svg.content().find("<polyline"), std::string::npos);
}

TEST(Train, InBfloat16FollowsFloat32) {
  const std::vector<StepRecord> rough = losses_on({2, 2}, "--steps 10 --dtype bfloat16");
  const std::vector<StepRecord> exact = alone("--steps 10 --dtype float32");
  expect_equal_losses(rough, exact, 1e-2);
  EXPECT_NE(rough.back().loss, exact.back().loss);
}

TEST(Train, TokensBeyondTheVocabularyAreAnError) {
  const TemporaryFile data("corpus.ids", "1 2 3 300 5 6 7 8 9");
  const CommandResult result = run_llama({1, 2}, "train --sequence-length 4 --data " + data.path().string());
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output,
            "meshtorch-llama: " + data.path().string() +
                " has token 300, and the model a vocabulary of 256\n  option --data\n  do: use a "
                "file of the model's own tokens (name ending in .ids), or a model with a "
                "vocabulary of 256 or more for text\n");
}

TEST(Train, ABatchThatCannotBeCutIsAnError) {
  const CommandResult result =
      run_llama({1, 1}, "train --batch-size 4 --accumulate 3 --data " MESHTORCH_DEMO_TEXT);
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_EQ(result.output,
            "meshtorch-llama: a batch of 4 rows cannot be cut into 3 equal parts\n  options --batch-size and "
            "--accumulate\n  do: make the batch a multiple of the parts\n");
}

}  // namespace
}  // namespace llama
