// What random operators draw, checked.
#include "decompose/distributions.h"

#include <ATen/ATen.h>
#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>

#include <limits>

#include "tensor/meta.h"
#include "tensor/random.h"

namespace meshtorch::internal {
namespace {

// The largest integer that random_() gives: the largest of an integer type, 2^digits of a floating one.
std::int64_t largest_integer(at::ScalarType type) {
  return AT_DISPATCH_V2(type, "random_", AT_WRAP([&]() -> std::int64_t {
                          using Limits = std::numeric_limits<scalar_t>;
                          if constexpr (std::is_same_v<scalar_t, bool>) {
                            return 1;
                          } else if constexpr (std::is_integral_v<scalar_t>) {
                            return Limits::digits > 63 ? std::numeric_limits<std::int64_t>::max()
                                                       : static_cast<std::int64_t>(Limits::max());
                          } else {
                            return std::int64_t{1} << Limits::digits;
                          }
                        }),
                        AT_EXPAND(AT_ALL_TYPES), AT_EXPAND(AT_BAREBONES_UNSIGNED_TYPES), at::kBool, at::kHalf,
                        at::kBFloat16);
}

void check_number(const Asked& asked, bool is_right, const char* name, double number, const char* should) {
  TORCH_CHECK_VALUE(is_right, "meshtorch: `", asked.op, "` cannot draw with ", name, " = ", number,
                    "\n  argument: ", name, "\n  do: pass a number that is ", should);
}

void check_floating(const Asked& asked) {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(asked.type) || at::isComplexType(asked.type), "meshtorch: `",
                              asked.op, "` draws real numbers, not numbers of type ", asked.type,
                              "\n  argument: self\n  do: use a floating type, or random_");
}

}  // namespace

void check_probability(const Asked& asked, double p) {
  check_number(asked, p >= 0 && p <= 1, "p", p, "from 0 to 1");
}

void check_probabilities(const char* op, const char* argument, const at::Tensor& given) {
  const DTensorMeta* meta = meta_of(given);
  // Nothing to look at.
  if (given.is_meta() || (meta != nullptr && !meta->mesh->coordinate())) return;
  const bool is_right = given.ge(0).logical_and(given.le(1)).all().item().toBool();  // on every rank
  TORCH_CHECK_VALUE(is_right, "meshtorch: `", op,
                    "` cannot draw with a probability below 0 or above 1\n  argument: ", argument,
                    "\n  do: pass probabilities from 0 to 1");
}

void check_deviation(const Asked& asked, double deviation) {
  check_number(asked, deviation >= 0, "std", deviation, "not negative");
}

Distribution checked_uniform(const Asked& asked, double from, double to) {
  check_floating(asked);
  check_number(asked, from <= to, "from", from, "not above `to`");
  return Distribution::uniform(from, to);
}

Distribution checked_normal(const Asked& asked, double mean, double deviation) {
  check_floating(asked);
  check_deviation(asked, deviation);
  return Distribution::normal(mean, deviation);
}

Distribution checked_log_normal(const Asked& asked, double mean, double deviation) {
  check_floating(asked);
  check_number(asked, deviation > 0, "std", deviation, "above 0");
  return Distribution::log_normal(mean, deviation);
}

Distribution checked_cauchy(const Asked& asked, double median, double sigma) {
  check_floating(asked);
  check_number(asked, sigma > 0, "sigma", sigma, "above 0");
  return Distribution::cauchy(median, sigma);
}

Distribution checked_exponential(const Asked& asked, double rate) {
  check_floating(asked);
  check_number(asked, rate > 0, "lambd", rate, "above 0");
  return Distribution::exponential(rate);
}

Distribution checked_geometric(const Asked& asked, double p) {
  check_number(asked, p > 0 && p < 1, "p", p, "above 0 and below 1");
  return Distribution::geometric(p);
}

Distribution checked_bernoulli(const Asked& asked, double p) {
  check_probability(asked, p);
  return Distribution::bernoulli(p);
}

Distribution DrawIntegers::checked(const Asked& asked, std::int64_t from, std::optional<std::int64_t> to) {
  if (to) return integers_between(from, *to, asked.type);
  const std::int64_t largest = largest_integer(asked.type);
  TORCH_CHECK_VALUE(from <= largest, "meshtorch: `", asked.op, "` cannot draw from ", from, " on in type ",
                    asked.type, ", whose largest integer is ", largest,
                    "\n  argument: from\n  do: pass a smaller number");
  check_integers(from, largest, asked.type);
  // From the least of 64 bits on, the span is 2^64, which is written 0.
  return Distribution::integers(from,
                                static_cast<std::uint64_t>(largest) - static_cast<std::uint64_t>(from) + 1);
}

}  // namespace meshtorch::internal
