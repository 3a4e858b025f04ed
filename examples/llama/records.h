// What is known of each training step: in memory, in a file, on the screen, as a curve. No torch.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
#include <iosfwd>
#include <string>
#include <vector>

namespace llama {

struct StepRecord {
  std::int64_t step = 0;  // of the whole training, from 1
  double loss = 0;
  double learning_rate = 0;
  double gradient_norm = 0;
  double seconds = 0;  // this step
  double tokens_per_second = 0;
  double communication_share = 0;  // of this step's time, on rank 0
};

// Numbers are written so that they read back bit for bit; a loss that is not finite becomes null.
std::string to_json_line(const StepRecord& record);
StepRecord step_record_from_json(const std::string& line);

// The records, and, one JSON object a line, a file of them.
class TrainingLog {
 public:
  // Without a file: in memory only. A training that goes on after `done_steps` keeps the lines of the file up
  // to there; lines of steps that it will do again, and a line cut off by a crash, go.
  TrainingLog(std::filesystem::path file, std::int64_t done_steps);

  void add(const StepRecord& record);
  const std::vector<StepRecord>& records() const { return records_; }

 private:
  std::vector<StepRecord> records_;
  std::ofstream out_;
};

struct ProgressOptions {
  std::int64_t total_steps = 0;
  bool is_terminal = false;
  // Elsewhere: a line after each so many steps, the first step and the last; 0: about 20 lines in all.
  std::int64_t every = 0;
};

// Shows how a training goes: a bar that stays in its line on a terminal, a line now and then elsewhere.
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

// An SVG: every step's loss as a pale line, the mean of those around each as a strong one. Steps whose loss
// is not finite are left out.
std::string loss_curve_svg(const std::vector<StepRecord>& records, const std::string& title);

}  // namespace llama
