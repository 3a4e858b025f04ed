// What is known of each training step, kept in memory and, one JSON object a line, in a file.
#pragma once

#include <cstdint>
#include <filesystem>
#include <fstream>
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

}  // namespace llama
