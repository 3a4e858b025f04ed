// Shows how a training goes: a bar that stays in its line on a terminal, a line now and then elsewhere.
#pragma once

#include <cstdint>
#include <iosfwd>
#include <string>

#include "training_log.h"

namespace llama {

struct ProgressOptions {
  std::int64_t total_steps = 0;
  bool is_terminal = false;
  // Elsewhere: a line after each so many steps, the first step and the last; 0: about 20 lines in all.
  std::int64_t every = 0;
};

class Progress {
 public:
  Progress(std::ostream& out, const ProgressOptions& options);

  // After each step.
  void show(const StepRecord& record);
  // Ends the bar's line, so that something else can be printed.
  void finish();

 private:
  std::string line(const StepRecord& record) const;

  std::ostream& out_;
  ProgressOptions options_;
  double seconds_per_step_ = 0;
  double shown_loss_ = 0;
  std::int64_t seen_ = 0;
  bool bar_is_open_ = false;
};

// "4:07", "1:02:33".
std::string clock_time(double seconds);
// "950", "12.3k", "4.1M".
std::string short_number(double value);

}  // namespace llama
