// Starts the program through the shell and reads its files.
#include "llama_command.h"

#include <gtest/gtest.h>
#include <sys/wait.h>

#include <cmath>
#include <cstdio>
#include <fstream>

namespace llama {

std::string Ranks::name() const {
  return "dp" + std::to_string(dp) + "_tp" + std::to_string(tp) + (processes ? "_gloo" : "_threads");
}

CommandResult run_llama(const Ranks& ranks, const std::string& arguments) {
  // Ranks that wait for a core do not spin: other tests run at the same time.
  std::string command = "OMP_WAIT_POLICY=passive timeout 100 ";
  if (ranks.processes) {
    command +=
        MESHTORCH_RUN_BINARY " -n " + std::to_string(ranks.dp * ranks.cp * ranks.tp) + " --timeout 90 ";
  }
  command += MESHTORCH_LLAMA_BINARY " " + arguments + (ranks.sharded ? " --dp-shard " : " --dp ") +
             std::to_string(ranks.dp) + " --tp " + std::to_string(ranks.tp);
  if (ranks.cp > 1) command += " --cp " + std::to_string(ranks.cp);
  return run_shell(command);
}

CommandResult run_shell(const std::string& command) {
  CommandResult result;
  FILE* pipe = popen((command + " 2>&1 < /dev/null").c_str(), "r");
  if (pipe == nullptr) throw std::runtime_error("cannot start a shell");
  char buffer[4096];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) result.output.append(buffer, n);
  const int status = pclose(pipe);
  result.exit_code = WIFEXITED(status) ? WEXITSTATUS(status) : -1;
  return result;
}

void train_tiny(const Ranks& ranks, const std::string& arguments, int rows) {
  const CommandResult result = run_llama(
      ranks, "train --data " MESHTORCH_DEMO_TEXT
             " --hidden-size 16 --intermediate-size 21 --layers 2 --heads 8 --kv-heads 4 "
             "--vocab-size 257 --batch-size " +
                 std::to_string(rows) + " " + arguments +
                 (arguments.find("--sequence-length") == std::string::npos ? " --sequence-length 13" : ""));
  ASSERT_EQ(result.exit_code, 0) << ranks.name() << " " << arguments << "\n" << result.output;
}

std::vector<StepRecord> read_log(const std::string& file) {
  std::vector<StepRecord> records;
  std::ifstream in(file);
  for (std::string line; std::getline(in, line);) records.push_back(step_record_from_json(line));
  return records;
}

void expect_equal_losses(const std::vector<StepRecord>& actual, const std::vector<StepRecord>& expected,
                         double tolerance) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) {
    ASSERT_EQ(actual[i].step, expected[i].step);
    ASSERT_LE(std::abs(actual[i].loss - expected[i].loss), tolerance * expected[i].loss)
        << "step " << actual[i].step << ": " << actual[i].loss << " instead of " << expected[i].loss;
  }
}

}  // namespace llama
