// The progress bar, and the same in plain lines.
#include "progress.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>

namespace llama {

namespace {

std::string fixed(double value, int digits) {
  std::ostringstream text;
  text << std::fixed << std::setprecision(digits) << value;
  return text.str();
}

std::string bar(double done, int width) {
  const int filled = static_cast<int>(std::lround(std::clamp(done, 0.0, 1.0) * width));
  std::string text;
  for (int i = 0; i < width; ++i) text += i < filled ? "\u2588" : "\u2591";
  return text;
}

}  // namespace

std::string clock_time(double seconds) {
  const auto whole = static_cast<std::int64_t>(std::llround(std::max(seconds, 0.0)));
  std::ostringstream text;
  text << std::setfill('0');
  if (whole >= 3600) text << whole / 3600 << ":" << std::setw(2);
  text << whole / 60 % 60 << ":" << std::setw(2) << whole % 60;
  return text.str();
}

std::string short_number(double value) {
  if (value >= 1e6) return fixed(value / 1e6, 1) + "M";
  if (value >= 1e3) return fixed(value / 1e3, 1) + "k";
  return fixed(value, 0);
}

Progress::Progress(std::ostream& out, const ProgressOptions& options) : out_(out), options_(options) {
  if (options_.every <= 0) options_.every = std::max<std::int64_t>(1, options_.total_steps / 20);
}

void Progress::show(const StepRecord& record) {
  // The first step fills caches: it tells little of the time of the others.
  ++seen_;
  if (seen_ <= 2)
    seconds_per_step_ = record.seconds;
  else
    seconds_per_step_ += 0.1 * (record.seconds - seconds_per_step_);
  shown_loss_ = seen_ == 1 ? record.loss : shown_loss_ + 0.2 * (record.loss - shown_loss_);

  const bool last = record.step >= options_.total_steps;
  if (options_.is_terminal) {
    out_ << "\r" << line(record) << "\x1b[K" << std::flush;
    bar_is_open_ = true;
    if (last) finish();
  } else if (seen_ == 1 || last || record.step % options_.every == 0) {
    out_ << line(record) << std::endl;
  }
}

void Progress::finish() {
  if (bar_is_open_) out_ << std::endl;
  bar_is_open_ = false;
}

std::string Progress::line(const StepRecord& record) const {
  const auto total = static_cast<double>(options_.total_steps);
  const double left = (total - static_cast<double>(record.step)) * seconds_per_step_;
  const std::string of_all = std::to_string(options_.total_steps);
  std::ostringstream text;
  text << "step " << std::setw(static_cast<int>(of_all.size())) << record.step << "/" << of_all << "  ";
  if (options_.is_terminal) text << bar(static_cast<double>(record.step) / total, 24) << "  ";
  text << "loss " << fixed(options_.is_terminal ? shown_loss_ : record.loss, 4) << "  "
       << short_number(record.tokens_per_second) << " tokens/s  comm "
       << fixed(100 * record.communication_share, 0) << "%  " << clock_time(left) << " left";
  return text.str();
}

}  // namespace llama
