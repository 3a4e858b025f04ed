// Measuring a run, and its page.
#include "run_report.h"

#include <meshtorch/process_group.h>
#include <meshtorch/report.h>

#include <algorithm>
#include <csignal>
#include <cstdlib>
#include <filesystem>

#include "parallelize.h"
#include "records.h"

namespace llama {

StepMeter::StepMeter(std::string trace_file, std::int64_t tokens_of_step, std::int64_t steps)
    : trace_file_(std::move(trace_file)),
      tokens_of_step_(tokens_of_step),
      first_traced_(std::clamp<std::int64_t>(steps - kTracedSteps, 0, kFirstTraced)),
      end_of_traced_(std::min(first_traced_ + kTracedSteps, steps)) {}

void StepMeter::begin(std::int64_t index) {
  index_ = index;
  if (index % kStepsBetweenCounts == 0) comm_.emplace();
  if (index == first_traced_ && !trace_file_.empty()) trace_.emplace();
  begin_ = std::chrono::steady_clock::now();
}

void StepMeter::end(StepRecord& record) {
  record.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin_).count();
  record.tokens_per_second = static_cast<double>(tokens_of_step_) / record.seconds;
  if (comm_) {
    double waited = 0;
    for (const auto& [collective, statistics] : comm_->get_comm_counts().statistics())
      waited += statistics.seconds;
    communication_share_ = waited / record.seconds;
    if (comm_table_.empty()) comm_table_ = comm_->table() + "\n" + comm_->module_table();
    comm_.reset();
  }
  record.communication_share = communication_share_;
  if (trace_ && index_ + 1 == end_of_traced_) {
    trace_->save(trace_file_);
    trace_.reset();
  }
}

namespace {

volatile std::sig_atomic_t asked = 0;

void note(int signal) {
  asked = signal;
  std::signal(signal, SIG_DFL);
}

}  // namespace

Interruption::Interruption(bool is_wanted) : is_wanted_(is_wanted) {
  if (!is_wanted_) return;
  asked = 0;
  std::signal(SIGINT, note);
  std::signal(SIGTERM, note);
}

Interruption::~Interruption() {
  if (!is_wanted_) return;
  std::signal(SIGINT, SIG_DFL);
  std::signal(SIGTERM, SIG_DFL);
}

bool Interruption::was_asked_for() { return asked != 0; }

void Interruption::end_process() {
  std::signal(asked, SIG_DFL);
  std::raise(asked);
  std::abort();  // the signal was blocked
}

namespace mt = meshtorch;

RunReport::RunReport(const TrainOptions& options, const mt::DeviceMesh& mesh)
    : options_(options), mesh_(mesh) {
  if (is_wanted()) peak_.emplace();
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
  const mt::ParallelizePlan plan = plan_of(config, mesh_.size("tp"));
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
