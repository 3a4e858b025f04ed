// meshtorch-llama train: what it is to write is tried before its first step, and nothing is lost by that.
#include <gtest/gtest.h>

#include <filesystem>

#include "../unit/temporary_file.h"
#include "llama_command.h"

namespace llama {
namespace {

const std::string kTwoSmallSteps =
    "train --data " MESHTORCH_DEMO_TEXT
    " --steps 2 --hidden-size 16 --layers 1 --batch-size 4 --sequence-length 12 ";

TEST(TrainOutputs, WhatCannotBeWrittenIsAnErrorBeforeTheFirstStep) {
  const TemporaryFile file("file", "kept");
  const std::string name = file.path().string(), folder = file.path().parent_path().string();
  const auto error = [](const std::string& what, const std::string& option, const std::string& kind) {
    return "meshtorch-llama: cannot write the " + what + "\n  option " + option + "\n  do: name a " + kind +
           "\n";
  };
  const std::string in_folder = "file in a folder that exists",
                    new_folder = "folder that can be made, or written to";
  const std::string missing = ": there is no folder /nonexist", none = "/proc/x: No such file or directory";
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {"--export /proc/x", error("model " + none, "--export", new_folder)},
      {"--export " + name, error("model " + name + ": " + name + " is no folder", "--export", new_folder)},
      {"--checkpoint /proc/x", error("checkpoint " + none, "--checkpoint", new_folder)},
      {"--checkpoint " + name + "/state",
       error("checkpoint " + name + "/state: " + name + " is no folder", "--checkpoint", new_folder)},
      {"--svg /nonexist/x", error("loss curve /nonexist/x" + missing, "--svg", in_folder)},
      {"--svg " + folder, error("loss curve " + folder + ": it is a folder", "--svg", in_folder)},
      {"--trace /proc/x", error("trace " + none, "--trace", in_folder)},
      {"--log /nonexist/x", error("log /nonexist/x" + missing, "--log", in_folder)},
      {"--report /proc/x", error("report " + none, "--report", in_folder)}};
  for (const auto& [arguments, expected] : mistakes) {
    const CommandResult result = run_llama({1, 2}, kTwoSmallSteps + arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments;
    EXPECT_EQ(result.output, expected) << arguments;
  }
  EXPECT_EQ(file.content(), "kept");
}

TEST(TrainOutputs, LaunchedRanksEndBeforeTheFirstStepToo) {
  const CommandResult result = run_llama({1, 2, true}, kTwoSmallSteps + "--export /proc/x");
  EXPECT_EQ(result.exit_code, 1);
  EXPECT_NE(result.output.find("cannot write the model /proc/x"), std::string::npos) << result.output;
  EXPECT_EQ(result.output.find("step 1/2"), std::string::npos) << result.output;
}

TEST(TrainOutputs, ATrainingThatDoesNotStartLosesAndLeavesNothing) {
  const TemporaryFile svg("loss.svg", "an old curve"), log("log.jsonl", "an old log");
  const std::filesystem::path folder = svg.path().parent_path();
  const std::filesystem::path model = folder / "model", state = folder / "runs" / "1";
  std::filesystem::create_directory(model);
  const CommandResult result =
      run_llama({}, kTwoSmallSteps + "--svg " + svg.path().string() + " --log " + log.path().string() +
                        " --export " + model.string() + " --checkpoint " + state.string() + " --trace " +
                        (folder / "trace.json").string() + " --report /proc/x");
  EXPECT_EQ(result.exit_code, 1) << result.output;
  EXPECT_EQ(svg.content(), "an old curve");
  EXPECT_EQ(log.content(), "an old log");
  EXPECT_TRUE(std::filesystem::is_empty(model));
  EXPECT_FALSE(std::filesystem::exists(folder / "runs"));
  EXPECT_FALSE(std::filesystem::exists(folder / "trace.json"));
}

TEST(TrainOutputs, FoldersAreMadeAndTheCurveMayLieInThatOfTheCheckpoint) {
  const TemporaryFile log("log.jsonl");
  const std::filesystem::path folder = log.path().parent_path() / "runs";
  const CommandResult result =
      run_llama({1, 2}, kTwoSmallSteps + "--checkpoint " + (folder / "1").string() + "/ --export " +
                            (folder / "model").string() + " --svg " + (folder / "1" / "loss.svg").string() +
                            " --log /dev/null --trace /dev/null");
  EXPECT_EQ(result.exit_code, 0) << result.output;
  for (const char* file : {"1/checkpoint.json", "1/loss.svg", "model/config.json"})
    EXPECT_TRUE(std::filesystem::exists(folder / file)) << file;
}

}  // namespace
}  // namespace llama
