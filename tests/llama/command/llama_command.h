// Runs meshtorch-llama as a user does, on thread ranks or under a launcher, and keeps what it wrote.
#pragma once

#include <string>
#include <vector>

#include "records.h"

namespace llama {

struct CommandResult {
  int exit_code = -1;
  std::string output;  // standard output and error
};

// Where and how a command runs. processes: under meshtorch-run, with gloo.
struct Ranks {
  int dp = 1;
  int tp = 1;
  bool processes = false;
  int cp = 1;
  bool sharded = false;  // parameters over dp
  std::string name() const;
};

// `meshtorch-llama <arguments>` on these ranks, at most 100 seconds.
CommandResult run_llama(const Ranks& ranks, const std::string& arguments);

CommandResult run_shell(const std::string& command);

// Trains a tiny model whose width, vocabulary and sequence of 13, unless the arguments give another, the
// ranks share unevenly; fails the test if the command fails.
void train_tiny(const Ranks& ranks, const std::string& arguments, int rows = 4);

std::vector<StepRecord> read_log(const std::string& file);

// Every step's loss agrees, relative to the loss.
void expect_equal_losses(const std::vector<StepRecord>& actual, const std::vector<StepRecord>& expected,
                         double tolerance);

}  // namespace llama
