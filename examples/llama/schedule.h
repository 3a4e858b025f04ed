// What a training step is given, as a function of its number alone: windows of the data, and the learning
// rate. No torch.
#pragma once

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <filesystem>
#include <numbers>
#include <span>
#include <vector>

namespace llama {

using Token = std::int64_t;

// The tokens of a file: decimal numbers between white space if its name ends in ".ids", else its bytes.
std::vector<Token> read_tokens(const std::filesystem::path& file);

// Batches that are a function of seed, step and row alone: the same for any mesh and after any restart.
class TokenWindows {
 public:
  // Windows of `length` inputs and, one to the right, as many targets.
  TokenWindows(std::vector<Token> tokens, std::int64_t length, std::uint64_t seed);

  // length + 1 tokens.
  std::span<const Token> window(std::int64_t step, std::int64_t row) const;
  std::int64_t length() const { return length_; }
  Token largest_token() const;

 private:
  std::vector<Token> tokens_;
  std::int64_t length_;
  std::uint64_t seed_;
};

// A linear warm-up, then half a cosine down to the final rate.
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
