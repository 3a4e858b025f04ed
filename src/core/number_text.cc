// Times, sizes and shapes as people read them.
#include "core/number_text.h"

#include <array>
#include <cmath>

namespace meshtorch::internal {
namespace {

// "1.50" under every locale.
std::string two_decimals(double value) {
  const auto hundredths = static_cast<std::int64_t>(std::llround(value * 100));
  const std::string fraction = std::to_string(hundredths % 100);
  return std::to_string(hundredths / 100) + (fraction.size() < 2 ? ".0" : ".") + fraction;
}

}  // namespace

std::string bytes_text(std::int64_t bytes) {
  constexpr std::array<const char*, 5> kUnits{"KiB", "MiB", "GiB", "TiB", "PiB"};
  if (bytes < 1024) return std::to_string(bytes) + " B";
  double value = static_cast<double>(bytes) / 1024;
  std::size_t unit = 0;
  for (; value >= 1024 && unit + 1 < kUnits.size(); ++unit) value /= 1024;
  return two_decimals(value) + " " + kUnits[unit];
}

std::string time_text(double seconds) {
  if (seconds < 1e-3) return two_decimals(seconds * 1e6) + " us";
  if (seconds < 1) return two_decimals(seconds * 1e3) + " ms";
  return two_decimals(seconds) + " s";
}

std::string shape_text(std::span<const std::int64_t> sizes) {
  std::string text;
  for (const std::int64_t size : sizes) text.append(text.empty() ? "" : ", ").append(std::to_string(size));
  return "(" + text + ")";
}

}  // namespace meshtorch::internal
