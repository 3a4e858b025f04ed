// meshtorch-llama train --trace: which steps it holds, also of runs that are short.
#include <gtest/gtest.h>

#include <map>
#include <nlohmann/json.hpp>

#include "../unit/temporary_file.h"
#include "llama_command.h"

namespace llama {
namespace {

// How often each rank's trace has the last part of a step.
std::map<int, int> steps_in(const TemporaryFile& trace) {
  std::map<int, int> updates;
  const nlohmann::json all = nlohmann::json::parse(trace.content(), nullptr, false);
  if (all.is_discarded()) return updates;
  for (const auto& event : all.at("traceEvents")) {
    if (event.at("name") == "update") updates[event.at("pid")] += 1;
  }
  return updates;
}

TEST(TrainTrace, ATraceOfAShortRunHoldsTheStepsThatRan) {
  for (const auto& [steps, traced] : std::map<int, int>{{1, 1}, {2, 2}, {3, 2}}) {
    const TemporaryFile trace("trace.json");
    train_tiny({1, 2}, "--steps " + std::to_string(steps) + " --trace " + trace.path().string());
    EXPECT_EQ(steps_in(trace), (std::map<int, int>{{0, traced}, {1, traced}})) << steps;
  }
  const TemporaryFile stopped("trace.json");
  train_tiny({}, "--steps 9 --stop-after 2 --trace " + stopped.path().string());
  EXPECT_EQ(steps_in(stopped), (std::map<int, int>{{0, 2}}));
}

TEST(TrainTrace, ARunWithoutAStepSaysThatItWritesNoTrace) {
  const TemporaryFile trace("trace.json", "of an earlier run");
  const CommandResult result = run_llama({1, 2}, "train --data " MESHTORCH_DEMO_TEXT
                                                 " --steps 0 --hidden-size 16 --layers 1 --trace " +
                                                     trace.path().string());
  EXPECT_EQ(result.exit_code, 0) << result.output;
  EXPECT_NE(result.output.find("No step was left to do: no trace is written to " + trace.path().string()),
            std::string::npos)
      << result.output;
  EXPECT_EQ(trace.content(), "of an earlier run");
}

}  // namespace
}  // namespace llama
