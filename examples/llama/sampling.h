// How the next token is chosen from a row of logits: greedy, or drawn from what temperature, top-k and top-p
// leave.
#pragma once

#include <cstdint>
#include <random>
#include <span>
#include <vector>

namespace llama {

struct SamplingOptions {
  bool greedy = false;
  double temperature = 1;
  std::int64_t top_k = 0;  // 0: all
  double top_p = 1;        // the most probable tokens that together reach this probability
  std::uint64_t seed = 0;
};

// Throws if a value makes no sense.
void check(const SamplingOptions& options);

// One for each row of a batch, so that what a prompt gives does not depend on the prompts beside it. Equal on
// every rank.
class Sampler {
 public:
  Sampler(const SamplingOptions& options, std::uint64_t row);
  std::int64_t pick(std::span<const float> logits_V);

 private:
  SamplingOptions options_;
  std::mt19937_64 random_;
};

}  // namespace llama
