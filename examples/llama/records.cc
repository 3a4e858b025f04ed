// The log of a training, its progress on the screen, and its loss as a picture.
#include "records.h"

#include <nlohmann/json.hpp>

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <ostream>
#include <sstream>
#include <stdexcept>

namespace llama {
namespace {

double number_or_nan(const nlohmann::json& value) {
  return value.is_null() ? std::numeric_limits<double>::quiet_NaN() : value.get<double>();
}

// What may hold anything, in the words of an error.
std::string in_quotes(const std::string& text) {
  return nlohmann::json(text).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
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
  try {
    const nlohmann::json fields = nlohmann::json::parse(line);
    if (!fields.at("step").is_number_integer()) throw std::invalid_argument("the step is no whole number");
    StepRecord r;
    r.step = fields["step"].get<std::int64_t>();
    r.loss = number_or_nan(fields.at("loss"));
    r.learning_rate = number_or_nan(fields.at("learning_rate"));
    r.gradient_norm = number_or_nan(fields.at("gradient_norm"));
    r.seconds = number_or_nan(fields.at("seconds"));
    r.tokens_per_second = number_or_nan(fields.at("tokens_per_second"));
    r.communication_share = number_or_nan(fields.at("communication_share"));
    return r;
  } catch (const std::exception& error) {
    throw std::invalid_argument(std::string("a line of the log is no record of a step: ") + error.what() +
                                "\n  line: " + in_quotes(line.substr(0, 200)) +
                                "\n  do: name another file by --log, or take the line out");
  }
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

namespace {

constexpr double kWidth = 720, kHeight = 360;
constexpr double kLeft = 64, kRight = 24, kTop = 48, kBottom = 52;

struct Point {
  double step;
  double loss;
};

// Marks at round numbers: 1, 2 or 5 times a power of ten apart, about `wanted` of them.
std::vector<double> round_marks(double low, double high, int wanted) {
  const double rough = std::max(high - low, 1e-12) / wanted;
  const double power = std::pow(10, std::floor(std::log10(rough)));
  double apart = 10 * power;
  for (const double factor : {5.0, 2.0, 1.0}) {
    if (factor * power >= rough) apart = factor * power;
  }
  std::vector<double> marks;
  const double first = std::ceil(low / apart - 1e-9);
  for (double i = first; i * apart <= high + 1e-9 * apart; ++i) marks.push_back(i * apart);
  return marks;
}

// The weighted mean of the steps around each, a twentieth of the run wide. At the beginning, where the loss
// falls fastest, it reaches as far ahead as back and no further back than there are steps: it does not lag.
std::vector<Point> smooth(const std::vector<Point>& points) {
  const std::size_t half = points.size() / 40;
  std::vector<Point> result = points;
  for (std::size_t i = 0; i < points.size(); ++i) {
    const std::size_t back = std::min(half, i), ahead = std::min(back, points.size() - 1 - i);
    double sum = 0, weights = 0;
    for (std::size_t j = i - back; j <= i + ahead; ++j) {
      const double weight = static_cast<double>(back + 1 - (j > i ? j - i : i - j));
      sum += weight * points[j].loss;
      weights += weight;
    }
    result[i].loss = sum / weights;
  }
  return result;
}

class Chart {
 public:
  Chart(double first_step, double last_step, double low, double high)
      : first_(first_step), last_(std::max(last_step, first_step + 1)), low_(low), high_(high) {
    out_ << std::fixed << std::setprecision(1);
    out_ << "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 " << kWidth << " " << kHeight
         << "\" font-family=\"system-ui, sans-serif\" font-size=\"12\" fill=\"#475569\">\n"
         << "<rect width=\"100%\" height=\"100%\" fill=\"#ffffff\"/>\n";
  }

  void title(const std::string& words) {
    text(kLeft, 28, "start", "font-size=\"15\" font-weight=\"600\" fill=\"#0f172a\"", words);
  }
  void grid() {
    for (const double loss : round_marks(low_, high_, 6)) {
      line(kLeft, y(loss), kWidth - kRight, y(loss), "#e2e8f0");
      text(kLeft - 8, y(loss) + 4, "end", "", number(loss));
    }
    for (const double step : round_marks(first_, last_, 8)) {
      line(x(step), kHeight - kBottom, x(step), kHeight - kBottom + 5, "#94a3b8");
      text(x(step), kHeight - kBottom + 20, "middle", "", number(step));
    }
    line(kLeft, kHeight - kBottom, kWidth - kRight, kHeight - kBottom, "#94a3b8");
    text((kLeft + kWidth - kRight) / 2, kHeight - 12, "middle", "", "step");
    text(kLeft - 8, kTop - 8, "end", "", "loss");
  }
  void curve(const std::vector<Point>& points, const char* colour, const char* width) {
    out_ << "<polyline fill=\"none\" stroke=\"" << colour << "\" stroke-width=\"" << width
         << "\" stroke-linejoin=\"round\" points=\"";
    for (const Point& p : points) out_ << x(p.step) << "," << y(p.loss) << " ";
    out_ << "\"/>\n";
  }
  void last_value(const Point& p) {
    out_ << "<circle cx=\"" << x(p.step) << "\" cy=\"" << y(p.loss) << "\" r=\"3.5\" fill=\"#2563eb\"/>\n";
    text(x(p.step) - 4, y(p.loss) - 10, "end", "font-weight=\"600\" fill=\"#2563eb\"", number(p.loss, 3));
  }
  std::string finish() {
    out_ << "</svg>\n";
    return out_.str();
  }

 private:
  double x(double step) const {
    return kLeft + (step - first_) / (last_ - first_) * (kWidth - kLeft - kRight);
  }
  double y(double loss) const {
    return kHeight - kBottom - (loss - low_) / (high_ - low_) * (kHeight - kTop - kBottom);
  }
  static std::string number(double value, int significant = 6) {
    std::ostringstream text;
    text << std::setprecision(significant) << value;
    return text.str();
  }
  void line(double x1, double y1, double x2, double y2, const char* colour) {
    out_ << "<line x1=\"" << x1 << "\" y1=\"" << y1 << "\" x2=\"" << x2 << "\" y2=\"" << y2 << "\" stroke=\""
         << colour << "\"/>\n";
  }
  void text(double at_x, double at_y, const char* anchor, const char* style, const std::string& words) {
    out_ << "<text x=\"" << at_x << "\" y=\"" << at_y << "\" text-anchor=\"" << anchor << "\"";
    if (*style != '\0') out_ << " " << style;
    out_ << ">";
    for (const char c : words) {
      if (c == '<')
        out_ << "&lt;";
      else if (c == '&')
        out_ << "&amp;";
      else
        out_ << c;
    }
    out_ << "</text>\n";
  }

  double first_, last_, low_, high_;
  std::ostringstream out_;
};

}  // namespace

std::string loss_curve_svg(const std::vector<StepRecord>& records, const std::string& title) {
  std::vector<Point> points;
  for (const StepRecord& r : records) {
    if (std::isfinite(r.loss)) points.push_back({static_cast<double>(r.step), r.loss});
  }
  const auto by_loss = [](const Point& a, const Point& b) { return a.loss < b.loss; };
  double low = 0, high = 1;
  if (!points.empty()) {
    const auto [lowest, highest] = std::minmax_element(points.begin(), points.end(), by_loss);
    const double room =
        std::max(0.05 * (highest->loss - lowest->loss), 1e-6 * std::abs(highest->loss) + 1e-12);
    low = lowest->loss - room;
    high = highest->loss + room;
  }
  Chart chart(points.empty() ? 0 : points.front().step, points.empty() ? 1 : points.back().step, low, high);
  chart.title(title);
  chart.grid();
  if (!points.empty()) {
    const std::vector<Point> mean = smooth(points);
    chart.curve(points, "#bfdbfe", "1");
    chart.curve(mean, "#2563eb", "2");
    chart.last_value(mean.back());
  }
  return chart.finish();
}

}  // namespace llama
