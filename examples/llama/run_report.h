// What is measured of a run: the time of steps and its share of communication, traces, the page of `train
// --report`, written also when the run is interrupted.
#pragma once

#include <meshtorch/debug.h>
#include <meshtorch/decision_log.h>
#include <meshtorch/memory.h>
#include <meshtorch/trace.h>

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "records.h"
#include "train.h"

namespace llama {

// Measures training steps: time, share of communication, the table of collectives, the trace.
class StepMeter {
 public:
  // Steps are counted from 0 in this run, which has `steps` of them. Without a file nothing is traced.
  StepMeter(std::string trace_file, std::int64_t tokens_of_step, std::int64_t steps);

  void begin(std::int64_t index);
  // Fills the times of the record.
  void end(StepRecord& record);
  // What one step communicated on this rank: all together, then by module. Empty before the first step.
  const std::string& comm_table() const { return comm_table_; }

 private:
  // Counting costs some percent, so that it is done now and then.
  static constexpr std::int64_t kStepsBetweenCounts = 10;
  // The first steps fill caches; a trace of the two after them shows what the others are like. A run that is
  // shorter is traced at its end.
  static constexpr std::int64_t kFirstTraced = 2, kTracedSteps = 2;

  std::string trace_file_;
  std::int64_t tokens_of_step_;
  std::int64_t first_traced_, end_of_traced_;
  std::int64_t index_ = 0;
  std::chrono::steady_clock::time_point begin_;
  std::optional<meshtorch::CommDebugMode> comm_;
  std::optional<meshtorch::TraceMode> trace_;
  double communication_share_ = 0;
  std::string comm_table_;
};

// Ctrl-C or a request to end, noted while it lives so that what is unfinished can be written first.
class Interruption {
 public:
  // Without a wish, signals do what they did.
  explicit Interruption(bool is_wanted);
  ~Interruption();
  Interruption(const Interruption&) = delete;
  Interruption& operator=(const Interruption&) = delete;

  static bool was_asked_for();
  // Ends the process as the signal would have.
  [[noreturn]] static void end_process();

 private:
  bool is_wanted_;
};

// The page of `train --report`: what the first steps show on all ranks, and every step's numbers. All ranks
// make the same calls; rank 0 writes. Without options.report nothing is measured.
class RunReport {
 public:
  // Made before the model, so that all of its memory is measured.
  RunReport(const TrainOptions& options, const meshtorch::DeviceMesh& mesh);

  // Around each step of this run, number `index` of `steps`, and between the forward and the backward pass of
  // each part of it.
  void begin_step(std::int64_t index, std::int64_t steps);
  void forward_is_done();
  void end_step(const Llama& model, torch::optim::AdamW& optimizer);

  // Nothing is communicated: it may be called when other ranks have failed.
  void write(const Llama& model, const std::vector<StepRecord>& records) const;

 private:
  bool is_wanted() const { return !options_.report.empty(); }

  const TrainOptions& options_;
  meshtorch::DeviceMesh mesh_;
  bool is_counted_ = false, is_traced_ = false;  // this step
  std::optional<meshtorch::CommDebugMode> comm_;
  std::optional<meshtorch::DecisionLog> decisions_;
  std::optional<meshtorch::KeptMemory> kept_;
  std::optional<meshtorch::PeakMemory> peak_;
  std::optional<meshtorch::TraceMode> trace_;
  std::int64_t activations_ = 0;
  std::vector<std::string> traces_;
  std::vector<meshtorch::RankMemory> memory_;
};

}  // namespace llama
