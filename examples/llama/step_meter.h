// Measures training steps: time, share of communication, the table of collectives, the trace.
#pragma once

#include <meshtorch/debug.h>
#include <meshtorch/trace.h>

#include <chrono>
#include <optional>
#include <string>

#include "training_log.h"

namespace llama {

class StepMeter {
 public:
  // Steps are counted from 0 in this run. Without a file nothing is traced.
  StepMeter(std::string trace_file, std::int64_t tokens_of_step);

  void begin(std::int64_t index);
  // Fills the times of the record.
  void end(StepRecord& record);
  // Writes the trace if it was not yet. All ranks call it.
  void finish();

  // What one step communicated on this rank: all together, then by module. Empty before the first step.
  const std::string& comm_table() const { return comm_table_; }

 private:
  // Counting costs some percent, so that it is done now and then.
  static constexpr std::int64_t kStepsBetweenCounts = 10;
  // The first steps fill caches; a trace of the two after them shows what the others are like.
  static constexpr std::int64_t kFirstTraced = 2, kTracedSteps = 2;

  std::string trace_file_;
  std::int64_t tokens_of_step_;
  std::int64_t index_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::optional<meshtorch::CommDebugMode> comm_;
  std::optional<meshtorch::TraceMode> trace_;
  double communication_share_ = 0;
  std::string comm_table_;
};

}  // namespace llama
