// meshtorch-llama as a program: what it prints where, and its exit codes.
#include <sys/wait.h>

#include "checkpoint_files.h"

namespace meshtorch::testing {
namespace {

struct Outcome {
  int exit_code;
  std::string out, error;
};

class LlamaCommand : public ::testing::Test {
 protected:
  void SetUp() override {
    if (ranks_are_processes()) GTEST_SKIP() << "the program is started once";
    write_checkpoint(directory_.path(), tiny_config(4, 2, 25));
  }

  // Runs the program with --model; a hang ends as a failure.
  Outcome run(const std::string& command, const std::string& arguments,
              const std::string& launcher = "") const {
    const std::string line = "timeout 60 " + launcher + MESHTORCH_LLAMA_BINARY " " + command + " --model " +
                             directory_.path().string() + " " + arguments + " >" +
                             (directory_ / "out").string() + " 2>" + (directory_ / "error").string() +
                             " </dev/null";
    const int status = std::system(line.c_str());
    return {WEXITSTATUS(status), read_text(directory_ / "out"), read_text(directory_ / "error")};
  }

  TemporaryDirectory directory_;
};

TEST_F(LlamaCommand, JsonIsAllThatGeneratePrints) {
  const Outcome one = run("generate", "--ids 1,5,7 --max-new-tokens 3 --greedy --json");
  EXPECT_EQ(one.exit_code, 0) << one.error;
  const Outcome two = run("generate", "--ids 1,5,7 --max-new-tokens 3 --greedy --tp 2 --json");
  EXPECT_EQ(two.out, one.out);
  EXPECT_EQ(one.out.substr(0, 9), "{\"ids\": [");
  EXPECT_EQ(one.out.back(), '\n');
  EXPECT_EQ(std::count(one.out.begin(), one.out.end(), ','), 2) << one.out;
  EXPECT_NE(one.error.find("3 tokens in "), std::string::npos) << one.error;
  const Outcome none = run("generate", "--ids 1,5,7 --max-new-tokens 0 --greedy --json");
  EXPECT_EQ(none.out, "{\"ids\": []}\n");
  const Outcome batch = run("generate", "--ids 1,5,7 --ids 3 --max-new-tokens 1 --greedy --json");
  EXPECT_EQ(batch.out.substr(0, 10), "{\"ids\": [[");
}

TEST_F(LlamaCommand, TextIsStreamedAsIdsOrBytes) {
  const Outcome ids = run("generate", "--ids 1,5,7 --max-new-tokens 3 --seed 4 --tp 2");
  EXPECT_EQ(ids.exit_code, 0) << ids.error;
  EXPECT_EQ(std::count(ids.out.begin(), ids.out.end(), ' '), 3) << ids.out;
  const Outcome again = run("generate", "--ids 1,5,7 --max-new-tokens 3 --seed 4");
  EXPECT_EQ(again.out, ids.out);
}

TEST_F(LlamaCommand, TextOfAModelThatIsNotOfBytesIsNotLost) {
  write_checkpoint(directory_.path(), tiny_config(4, 2, 700));
  const Outcome outcome = run("generate", "--prompt abc --max-new-tokens 30 --seed 4");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(outcome.out.find('<'), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.error.find(" of the tokens are no bytes, and are printed as <id>"), std::string::npos)
      << outcome.error;
  write_text(directory_ / "tokenizer.json", "{}");
  const Outcome refused = run("generate", "--prompt abc --max-new-tokens 3");
  EXPECT_EQ(refused.exit_code, 1);
  EXPECT_EQ(refused.out, "");
  EXPECT_NE(refused.error.find("--prompt is for models of bytes"), std::string::npos) << refused.error;
  EXPECT_EQ(run("generate", "--ids 1,5 --max-new-tokens 3").exit_code, 0);
}

TEST_F(LlamaCommand, LogitsAreWrittenAsFloat32) {
  const std::string file = (directory_ / "logits.safetensors").string();
  const Outcome done = run("logits", "--ids 1,5,7 --tp 2 --dtype bfloat16 --out " + file);
  EXPECT_EQ(done.exit_code, 0) << done.error;
  EXPECT_EQ(done.out, "");
  const torch::Tensor logits = safetensors::Files(file).read("logits");
  EXPECT_EQ(logits.scalar_type(), torch::kFloat);
  EXPECT_EQ(logits.sizes(), (std::vector<int64_t>{1, 3, 25}));
}

TEST_F(LlamaCommand, MistakesEndWithCodeOneAndNothingOnStandardOutput) {
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {"--ids 1,25", "meshtorch-llama: token id 25 is out of range: the vocabulary has 25 tokens"},
      {"--ids 1,x", "meshtorch-llama: \"x\" is no token id"},
      {"--max-new-tokens 2", "meshtorch-llama: there is no prompt"},
      {"--ids 1 --temperature 0", "meshtorch-llama: a temperature has to be positive"},
      {"--ids 1 --dtype int8", "meshtorch-llama: \"int8\" is no type of weights"}};
  for (const auto& [arguments, message] : mistakes) {
    const Outcome outcome = run("generate", arguments + " --json");
    EXPECT_EQ(outcome.exit_code, 1) << arguments;
    EXPECT_EQ(outcome.out, "") << arguments;
    EXPECT_EQ(outcome.error.substr(0, message.size()), message) << arguments;
    EXPECT_NE(outcome.error.find("\n  do: "), std::string::npos) << arguments;
  }
}

TEST_F(LlamaCommand, EveryLaunchedRankSaysWhatIsWrong) {
  write_text(directory_ / "model.safetensors", "broken");
  const Outcome outcome =
      run("generate", "--ids 1 --tp 2 --json", std::string(MESHTORCH_RUN_BINARY) + " -n 2 --grace 20 ");
  EXPECT_EQ(outcome.exit_code, 1) << outcome.error;
  EXPECT_NE(outcome.error.find("model.safetensors"), std::string::npos) << outcome.error;
}

TEST_F(LlamaCommand, TheMeshMustFitTheLaunchedRanks) {
  const Outcome outcome =
      run("generate", "--ids 1 --tp 2 --dp 2", std::string(MESHTORCH_RUN_BINARY) + " -n 2 ");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_NE(outcome.error.find("a mesh of dp 2 x tp 2 does not have the 2 ranks that were started"),
            std::string::npos)
      << outcome.error;
}

TEST_F(LlamaCommand, ASequenceIsSharedByRanks) {
  const std::string prompt = "--ids 1,5,7,3,2,9,4 --max-new-tokens 4 --greedy --json";
  const Outcome one = run("generate", prompt);
  EXPECT_EQ(one.exit_code, 0) << one.error;
  for (const char* ranks : {" --cp 2", " --cp 2 --tp 2", " --cp 3 --tp 3", " --dp 2 --cp 2"})
    EXPECT_EQ(run("generate", prompt + ranks).out, one.out) << ranks;
  EXPECT_EQ(run("generate", prompt + " --cp 2", std::string(MESHTORCH_RUN_BINARY) + " -n 4 ").out,
            "[rank 0] " + one.out);
  const Outcome wrong =
      run("generate", prompt + " --cp 2 --tp 3", std::string(MESHTORCH_RUN_BINARY) + " -n 2 ");
  EXPECT_EQ(wrong.exit_code, 1);
  EXPECT_NE(wrong.error.find("does not have the 2 ranks that were started"), std::string::npos)
      << wrong.error;
}

TEST_F(LlamaCommand, WrongOptionsEndWithCodeTwo) {
  EXPECT_EQ(run("generate", "--ids 1 --tp 0").exit_code, 2);
  EXPECT_EQ(run("generate", "--ids 1 --no-such-option").exit_code, 2);
  EXPECT_EQ(run("generate", "--help").exit_code, 0);
}

TEST_F(LlamaCommand, InspectRefusesStepsBeyondAllMemory) {
  const Outcome outcome = run("inspect", "--batch 4611686018427387904");
  EXPECT_EQ(outcome.exit_code, 1);
  EXPECT_EQ(outcome.out, "");
  EXPECT_NE(outcome.error.find("tokens is beyond all memory"), std::string::npos) << outcome.error;
}

TEST_F(LlamaCommand, InspectReadsNoWeights) {
  std::filesystem::remove(directory_ / "model.safetensors");
  const Outcome outcome = run("inspect", "--world-size 64 --tp 2 --sequence 8");
  EXPECT_EQ(outcome.exit_code, 0) << outcome.error;
  EXPECT_NE(outcome.out.find("rank 0 of 64: dp 32 x tp 2\n"), std::string::npos) << outcome.out;
  EXPECT_NE(outcome.out.find("One training step of 32 x 8 tokens"), std::string::npos) << outcome.out;
  EXPECT_EQ(run("inspect", "--world-size 5 --tp 2").error,
            "meshtorch-llama: 5 ranks cannot be cut into rows of 2\n  where: --world-size and --tp\n"
            "  do: give a --tp that divides --world-size\n");
  const Outcome long_ones =
      run("inspect", "--world-size 64 --tp 2 --cp 4 --sequence 16 --html " + (directory_ / "page").string());
  EXPECT_NE(long_ones.out.find("rank 0 of 64: dp 8 x cp 4 x tp 2\n"), std::string::npos)
      << long_ones.out << long_ones.error;
  EXPECT_TRUE(std::filesystem::exists(directory_ / "page"));
  EXPECT_EQ(run("inspect", "--world-size 8 --tp 2 --cp 3").error,
            "meshtorch-llama: 4 rows of ranks cannot be cut into groups of 3\n  where: --cp\n"
            "  do: give a number that divides --world-size / --tp\n");
  EXPECT_EQ(run("inspect", "--world-size 4 --rank 4").error,
            "meshtorch-llama: there is no rank 4 among 4\n  where: --rank\n  do: give a rank from 0 to 3\n");
}

}  // namespace
}  // namespace meshtorch::testing
