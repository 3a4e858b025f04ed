// Counts now and then, traces once.
#include "step_meter.h"

namespace llama {

StepMeter::StepMeter(std::string trace_file, std::int64_t tokens_of_step)
    : trace_file_(std::move(trace_file)), tokens_of_step_(tokens_of_step) {}

void StepMeter::begin(std::int64_t index) {
  index_ = index;
  if (index % kStepsBetweenCounts == 0) comm_.emplace();
  if (index == kFirstTraced && !trace_file_.empty()) trace_.emplace();
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
  if (index_ + 1 == kFirstTraced + kTracedSteps) finish();
}

void StepMeter::finish() {
  if (trace_) trace_->save(trace_file_);
  trace_.reset();
}

}  // namespace llama
