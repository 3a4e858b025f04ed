// The page of `train --report`: what the first steps show on all ranks, and every step's numbers.
#pragma once

#include <meshtorch/debug.h>
#include <meshtorch/decision_log.h>
#include <meshtorch/memory.h>
#include <meshtorch/trace.h>

#include <optional>
#include <string>
#include <vector>

#include "train.h"

namespace llama {

// All ranks make the same calls; rank 0 writes. Without options.report nothing is measured.
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
