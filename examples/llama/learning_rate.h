// The learning rate of each training step: a linear warm-up, then half a cosine down to the final rate.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <numbers>

namespace llama {

struct LearningRate {
  double peak = 3e-3;
  double final_fraction = 0.1;  // of the peak
  std::int64_t warmup_steps = 0;
  std::int64_t total_steps = 1;

  // The rate of step 0, 1, …; the last step has the final rate, and so has every later one.
  double at(std::int64_t step) const {
    if (step < warmup_steps) return peak * static_cast<double>(step + 1) / static_cast<double>(warmup_steps);
    const auto falling = static_cast<double>(std::max<std::int64_t>(total_steps - 1 - warmup_steps, 1));
    const double way = std::min(1.0, static_cast<double>(step - warmup_steps) / falling);
    const double height = 0.5 * (1 + std::cos(std::numbers::pi * way));
    return peak * (final_fraction + (1 - final_fraction) * height);
  }
};

}  // namespace llama
