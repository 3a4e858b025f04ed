// Measures a few steps for the page, and writes it.
#include "run_report.h"

#include <meshtorch/process_group.h>
#include <meshtorch/report.h>

#include <filesystem>

#include "parallelize.h"
#include "progress.h"

namespace llama {

namespace mt = meshtorch;

RunReport::RunReport(const TrainOptions& options, const mt::DeviceMesh& mesh)
    : options_(options), mesh_(mesh) {
  if (!is_wanted()) return;
  // Hours later would be too late to learn of it.
  const std::filesystem::path folder = std::filesystem::absolute(options_.report).parent_path();
  TORCH_CHECK_VALUE(std::filesystem::is_directory(folder), "meshtorch-llama: cannot write the report ",
                    options_.report, ": there is no folder ", folder.string(),
                    "\n  option --report\n  do: name a file in a folder that exists");
  peak_.emplace();
}

void RunReport::begin_step(std::int64_t index, std::int64_t steps) {
  if (!is_wanted()) return;
  // The first step fills caches. Counting slows a step, so that another one is traced.
  is_counted_ = index == std::min<std::int64_t>(1, steps - 1);
  is_traced_ = index == std::min<std::int64_t>(2, steps - 1);
  if (is_counted_) {
    peak_->restart();
    comm_.emplace();
    decisions_.emplace();
    kept_.emplace();
  }
  if (is_traced_) trace_.emplace();
}

void RunReport::forward_is_done() {
  if (kept_) activations_ = std::max(activations_, kept_->bytes());
}

void RunReport::end_step(const Llama& model, torch::optim::AdamW& optimizer) {
  if (is_traced_) traces_ = trace_->gather();
  if (!is_counted_) return;
  comm_->stop();
  decisions_->stop();
  kept_.reset();
  mt::RankMemory mine = mt::memory_of(*model, &optimizer);
  mine.activations = activations_;
  mine.measured_peak = peak_->bytes();
  peak_.reset();
  memory_ = mt::gather_memory(mine);
}

void RunReport::write(const Llama& model, const std::vector<StepRecord>& records) const {
  if (!is_wanted() || mt::get_rank() != 0) return;
  const Config& config = model->config;
  const mt::ParallelizePlan plan = plan_of(config);
  mt::report::Contents contents;
  contents.title = "Training on " + std::filesystem::path(options_.data).filename().string();
  contents.facts = {
      {"model", std::to_string(config.num_layers) + " layers of width " + std::to_string(config.hidden_size)},
      {"type", options_.dtype},
      {"step", std::to_string(options_.trainer.batch_size) + " x " +
                   std::to_string(options_.sequence_length) + " tokens"}};
  const std::int64_t done = records.empty() ? 0 : records.back().step;
  contents.facts.emplace_back(
      "steps", done < options_.steps
                   ? std::to_string(done) + " of " + std::to_string(options_.steps) + " are done"
                   : std::to_string(done));
  contents.mesh = mesh_;
  contents.module = model.get();
  contents.plan = &plan;
  if (comm_) contents.comm = &*comm_;
  contents.comm_of = "One training step";
  if (decisions_) contents.decisions = &*decisions_;
  contents.traces = traces_;
  for (const StepRecord& r : records)
    contents.steps.push_back({r.step, r.loss, r.seconds, r.tokens_per_second, r.communication_share});
  contents.memory = memory_;
  contents.memory_note =
      "Activations are those that the forward pass keeps for backward. The peak is of all tensors of the "
      "rank, "
      "temporary ones included; gradients come while activations go.";
  mt::report::write(options_.report, contents);
}

}  // namespace llama
