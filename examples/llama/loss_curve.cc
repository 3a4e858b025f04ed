// Draws the loss curve: scales, grid, two lines.
#include "loss_curve.h"

#include <algorithm>
#include <cmath>
#include <iomanip>
#include <sstream>

namespace llama {

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
