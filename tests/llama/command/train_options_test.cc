// meshtorch-llama train: numbers and sizes that no model can have are refused in words.
#include <gtest/gtest.h>

#include "llama_command.h"

namespace llama {
namespace {

CommandResult train_with(const std::string& arguments) {
  return run_llama({1, 2}, "train --data " MESHTORCH_DEMO_TEXT " --steps 1 " + arguments);
}

TEST(TrainSizes, HeadsThatDoNotGoTogetherAreNamedWithTheirOptions) {
  const std::string where = "\n  in: options --hidden-size, --heads and --kv-heads\n  do: ";
  const std::string whole_heads = where + "make --hidden-size a multiple of --heads\n";
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {"--heads 5 --kv-heads 5", "a width of 128 cannot be cut into 5 heads" + whole_heads},
      {"--hidden-size 2 --heads 4", "a width of 2 cannot be cut into 4 heads" + whole_heads},
      {"--hidden-size 12 --heads 4",
       "a head of odd size 3 cannot be rotated" + where + "make --hidden-size an even multiple of --heads\n"},
      {"--heads 4 --kv-heads 3", "4 attention heads cannot share 3 heads of keys and values" + where +
                                     "make --heads a multiple of --kv-heads\n"}};
  for (const auto& [arguments, error] : mistakes) {
    const CommandResult result = train_with(arguments);
    EXPECT_EQ(result.exit_code, 1) << arguments;
    EXPECT_EQ(result.output, "meshtorch-llama: " + error) << arguments;
  }
}

TEST(TrainOptions, NumbersOutOfRangeAreRefusedInWords) {
  const std::vector<std::pair<std::string, std::string>> mistakes{
      {"--heads 0", "--heads: has to be a whole number from 1 to 4194304, not 0"},
      {"--hidden-size 99999999999",
       "--hidden-size: has to be a whole number from 1 to 4194304, not 99999999999"},
      {"--layers 1.5", "--layers: has to be a whole number from 1 to 1024, not 1.5"},
      {"--learning-rate abc", "--learning-rate: has to be a number from 0 up, not abc"},
      {"--learning-rate nan", "--learning-rate: has to be a number from 0 up, not nan"},
      {"--warmup -5", "--warmup: has to be a whole number from 0 up, not -5"},
      {"--batch-size 0", "--batch-size: has to be a whole number from 1 up, not 0"},
      {"--beta2 1", "--beta2: has to be a number from 0 to below 1, not 1"},
      {"--seed x", "--seed: has to be a whole number from 0 up, not x"},
      {"--print-every -1", "--print-every: has to be a whole number from 0 up, not -1"}};
  for (const auto& [arguments, error] : mistakes) {
    const CommandResult result = train_with(arguments);
    EXPECT_EQ(result.exit_code, 2) << arguments;
    EXPECT_EQ(result.output, error + "\nRun with --help for more information.\n") << arguments;
  }
}

TEST(LlamaHelp, NamesAllKindsOfParallelism) {
  const CommandResult result = run_shell(MESHTORCH_LLAMA_BINARY " --help");
  EXPECT_EQ(result.exit_code, 0);
  for (const char* kind : {"tensor parallel (tp)", "data parallel (dp)", "context parallel (cp)"})
    EXPECT_NE(result.output.find(kind), std::string::npos) << kind;
}

}  // namespace
}  // namespace llama
