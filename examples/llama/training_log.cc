// The training log: JSON lines out, and in again when a training goes on.
#include "training_log.h"

#include <nlohmann/json.hpp>
#include <stdexcept>

namespace llama {

namespace {

double number_or_nan(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

}  // namespace

std::string to_json_line(const StepRecord& r) {
  const nlohmann::ordered_json line{
      {"step", r.step},
      {"loss", r.loss},
      {"learning_rate", r.learning_rate},
      {"gradient_norm", r.gradient_norm},
      {"seconds", r.seconds},
      {"tokens_per_second", r.tokens_per_second},
      {"communication_share", r.communication_share},
  };
  return line.dump();
}

StepRecord step_record_from_json(const std::string& line) {
  const nlohmann::json fields = nlohmann::json::parse(line);
  StepRecord r;
  r.step = fields.at("step").get<std::int64_t>();
  r.loss = number_or_nan(fields.at("loss"));
  r.learning_rate = number_or_nan(fields.at("learning_rate"));
  r.gradient_norm = number_or_nan(fields.at("gradient_norm"));
  r.seconds = number_or_nan(fields.at("seconds"));
  r.tokens_per_second = number_or_nan(fields.at("tokens_per_second"));
  r.communication_share = number_or_nan(fields.at("communication_share"));
  return r;
}

TrainingLog::TrainingLog(std::filesystem::path file, std::int64_t done_steps) {
  if (file.empty()) return;
  if (done_steps > 0) {
    std::ifstream in(file);
    for (std::string line; std::getline(in, line);) {
      if (!nlohmann::json::accept(line)) break;
      const StepRecord record = step_record_from_json(line);
      if (record.step <= done_steps) records_.push_back(record);
    }
  }
  out_.open(file, std::ios::trunc);
  if (!out_) {
    throw std::invalid_argument("cannot write the log " + file.string() +
                                ".\n  option --log\n  do: name a file in a folder that exists");
  }
  for (const StepRecord& record : records_) out_ << to_json_line(record) << "\n";
  out_.flush();
}

void TrainingLog::add(const StepRecord& record) {
  records_.push_back(record);
  if (out_.is_open()) out_ << to_json_line(record) << std::endl;  // flushed: what was done is on disk
}

}  // namespace llama
