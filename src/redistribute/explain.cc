// The printed form of a plan: what explain_redistribute shows, the same text on every machine.
#include <algorithm>
#include <array>

#include "core/number_text.h"
#include "redistribute/plan.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kColumns = 7;
using TableLine = std::array<std::string, kColumns>;

std::string kind_text(const Step& step) {
  std::string text(to_string(step.kind));
  const bool has_op = step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::reduce_scatter ||
                      step.kind == Step::Kind::to_partial;
  if (has_op) text.append("(").append(to_string(step.op)).append(")");
  return text;
}

std::string axes_text(const std::vector<int>& axes) {
  if (axes.empty()) return "mesh to mesh";
  std::string text;
  for (int axis : axes) text.append(text.empty() ? "" : ", ").append(std::to_string(axis));
  return text;
}

TableLine line_of(std::size_t number, const Step& step) {
  return {std::to_string(number),      kind_text(step),
          axes_text(step.axes),        to_string(step.before) + " -> " + to_string(step.after),
          bytes_text(step.bytes_sent), bytes_text(step.peak_bytes),
          time_text(step.seconds)};
}

// Text columns to the left, numbers (the last three) to the right.
std::string table(const std::vector<TableLine>& lines) {
  std::array<std::size_t, kColumns> widths{};
  for (const TableLine& line : lines) {
    for (std::size_t i = 0; i < kColumns; ++i) widths[i] = std::max(widths[i], line[i].size());
  }
  std::string text;
  for (const TableLine& line : lines) {
    for (std::size_t i = 0; i < kColumns; ++i) {
      const std::string pad(widths[i] - line[i].size(), ' ');
      text.append("  ").append(i < kColumns - 3 ? line[i] + pad : pad + line[i]);
    }
    text.append("\n");
  }
  return text;
}

}  // namespace

std::string Plan::to_string() const {
  if (steps.empty()) return "redistribute: nothing to do\n";
  const auto collectives =
      std::count_if(steps.begin(), steps.end(), [](const Step& step) { return is_collective(step.kind); });
  std::string text = "redistribute " + meshtorch::to_string(steps.front().before) + " -> " +
                     meshtorch::to_string(steps.back().after) + ": " + std::to_string(steps.size()) +
                     (steps.size() == 1 ? " step, " : " steps, ") + std::to_string(collectives) +
                     (collectives == 1 ? " collective, " : " collectives, ") + bytes_text(bytes_sent) +
                     " sent, " + bytes_text(peak_bytes) + " peak, " + time_text(seconds) + "\n";
  std::vector<TableLine> lines{{"#", "step", "axes", "placements", "sent", "peak", "time"}};
  for (const Step& step : steps) lines.push_back(line_of(lines.size(), step));
  return text + table(lines);
}

}  // namespace meshtorch::internal
