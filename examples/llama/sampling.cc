// Sampling in plain C++ and double precision, the same on every machine.
#include "sampling.h"

#include <c10/util/Exception.h>

#include <algorithm>
#include <cmath>
#include <numeric>

namespace llama {
namespace {

std::size_t kept_by_top_k(const SamplingOptions& options, std::size_t count) {
  return options.top_k > 0 ? std::min(count, static_cast<std::size_t>(options.top_k)) : count;
}

// The candidates' ids; sorted from the most probable down, ties by id, where a limit needs it.
std::vector<std::int64_t> candidates(std::span<const float> logits_V, const SamplingOptions& options) {
  std::vector<std::int64_t> ids(logits_V.size());
  std::iota(ids.begin(), ids.end(), 0);
  if (options.top_k <= 0 && options.top_p >= 1) return ids;
  const std::size_t kept = kept_by_top_k(options, ids.size());
  const auto is_before = [&](std::int64_t a, std::int64_t b) {
    const float logit_a = logits_V[static_cast<std::size_t>(a)],
                logit_b = logits_V[static_cast<std::size_t>(b)];
    return logit_a != logit_b ? logit_a > logit_b : a < b;
  };
  std::partial_sort(ids.begin(), ids.begin() + static_cast<std::ptrdiff_t>(kept), ids.end(), is_before);
  ids.resize(kept);
  return ids;
}

// How many of the sorted weights, whose sum is `total`, it takes to reach the share p.
std::size_t kept_by_top_p(const std::vector<double>& weights, double total, double p) {
  double sum = 0;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    sum += weights[i];
    if (sum >= p * total) return i + 1;
  }
  return weights.size();
}

}  // namespace

void check(const SamplingOptions& options) {
  TORCH_CHECK_VALUE(std::isfinite(options.temperature) && options.temperature > 0,
                    "meshtorch-llama: a temperature has to be positive, it is ", options.temperature,
                    "\n  where: --temperature\n  do: use --greedy for the most probable token");
  TORCH_CHECK_VALUE(options.top_k >= 0, "meshtorch-llama: top-k cannot be ", options.top_k,
                    "\n  where: --top-k\n  do: give a number of tokens, or 0 for all");
  TORCH_CHECK_VALUE(options.top_p > 0 && options.top_p <= 1, "meshtorch-llama: top-p cannot be ",
                    options.top_p, "\n  where: --top-p\n  do: give a probability above 0, at most 1");
}

Sampler::Sampler(const SamplingOptions& options, std::uint64_t row) : options_(options) {
  std::seed_seq seeds{options.seed, options.seed >> 32, row};
  random_.seed(seeds);
}

std::int64_t Sampler::pick(std::span<const float> logits_V) {
  const auto largest = std::max_element(logits_V.begin(), logits_V.end());
  if (options_.greedy) return largest - logits_V.begin();
  const std::vector<std::int64_t> ids = candidates(logits_V, options_);
  std::vector<double> weights;
  weights.reserve(ids.size());
  for (const std::int64_t id : ids) {
    const double below =
        static_cast<double>(logits_V[static_cast<std::size_t>(id)]) - static_cast<double>(*largest);
    weights.push_back(std::exp(below / options_.temperature));
  }
  double total = std::accumulate(weights.begin(), weights.end(), 0.0);
  if (options_.top_p < 1) {
    weights.resize(kept_by_top_p(weights, total, options_.top_p));
    total = std::accumulate(weights.begin(), weights.end(), 0.0);
  }
  // 53 random bits, by hand: the standard leaves its own distributions to the library.
  double left = static_cast<double>(random_() >> 11) * 0x1p-53 * total;
  for (std::size_t i = 0; i < weights.size(); ++i) {
    left -= weights[i];
    if (left < 0) return ids[i];
  }
  return ids[weights.size() - 1];
}

}  // namespace llama
