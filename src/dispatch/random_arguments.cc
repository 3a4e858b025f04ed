// The arguments of a random operator by name, checked, and the distribution that they ask for.
#include "dispatch/random_arguments.h"

#include <ATen/Dispatch.h>
#include <ATen/Dispatch_v2.h>

#include <limits>

#include "tensor/random.h"

namespace meshtorch {
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

// "normal_.float" is of the family "normal".
std::string family(const std::string& name) {
  std::string base = name.substr(0, name.find('.'));
  if (base.ends_with('_')) base.pop_back();
  return base;
}

}  // namespace

RandomArguments::RandomArguments(Handler& call) : call_(call) {
  const auto generator = find("generator");
  TORCH_CHECK_VALUE(!generator || call_.argument(*generator).isNone(), "meshtorch: `",
                    call_.info().op.schema().name(),
                    "` got a generator, but the numbers of a distributed tensor do not come from one\n  "
                    "argument: generator\n  do: leave it out, and "
                    "choose the numbers with meshtorch::manual_seed or set_rng_state");
}

std::optional<std::size_t> RandomArguments::find(std::string_view name) const {
  return call_.info().find(name);
}

std::size_t RandomArguments::index(std::string_view name) const {
  const auto found = find(name);
  TORCH_INTERNAL_ASSERT(found, "`", call_.info().name, "` has no argument ", name);
  return *found;
}

bool RandomArguments::has(std::string_view name) const {
  const auto found = find(name);
  return found && !call_.argument(*found).isNone();
}

std::optional<at::ScalarType> RandomArguments::type(std::string_view name) const {
  return has(name) ? std::optional(value(name).toScalarType()) : std::nullopt;
}

std::optional<at::Device> RandomArguments::device(std::string_view name) const {
  return has(name) ? std::optional(value(name).toDevice()) : std::nullopt;
}

void RandomArguments::check(bool is_right, std::string_view name, const char* should) const {
  TORCH_CHECK_VALUE(is_right, "meshtorch: `", call_.info().op.schema().name(), "` cannot draw with ", name,
                    " = ", number(name), "\n  argument: ", name, "\n  do: pass a number that is ", should);
}

void RandomArguments::check_floating(at::ScalarType type) const {
  TORCH_CHECK_NOT_IMPLEMENTED(at::isFloatingType(type) || at::isComplexType(type), "meshtorch: `",
                              call_.info().op.schema().name(), "` draws real numbers, not numbers of type ",
                              type, "\n  argument: self\n  do: use a floating type, or random_");
}

double RandomArguments::probability(std::string_view name) const {
  const double p = number(name);
  check(p >= 0 && p <= 1, name, "from 0 to 1");
  return p;
}

double RandomArguments::deviation() const {
  const double deviation = number("std");
  check(deviation >= 0, "std", "not negative");
  return deviation;
}

Distribution RandomArguments::standard_normal(at::ScalarType type) const {
  check_floating(type);
  return Distribution::normal(0, 1);
}

// random_, in its three forms.
Distribution RandomArguments::integers(at::ScalarType type) const {
  const std::int64_t from = has("from") ? value("from").toInt() : 0;
  if (has("to")) return integers_between(from, value("to").toInt());
  const std::int64_t largest = largest_integer(type);
  TORCH_CHECK_VALUE(from <= largest, "meshtorch: `", call_.info().op.schema().name(), "` cannot draw from ",
                    from, " on in type ", type, ", whose largest integer is ", largest,
                    "\n  argument: from\n  do: pass a smaller number");
  // From the least of 64 bits on, the span is 2^64, which is written 0.
  return Distribution::integers(from,
                                static_cast<std::uint64_t>(largest) - static_cast<std::uint64_t>(from) + 1);
}

// randint_like, in its three forms.
Distribution RandomArguments::integers_below() const {
  const std::int64_t low = has("low") ? value("low").toInt() : 0;
  return integers_between(low, is_tensor("high") ? tensor("high").item().toLong() : value("high").toInt());
}

Distribution RandomArguments::distribution(at::ScalarType type) const {
  const std::string kind = family(call_.info().name);
  if (kind == "random") return integers(type);
  if (kind == "randint_like") return integers_below();
  if (kind == "bernoulli") return Distribution::bernoulli(probability("p"));
  if (kind == "geometric") {
    check(number("p") > 0 && number("p") < 1, "p", "above 0 and below 1");
    return Distribution::geometric(number("p"));
  }
  check_floating(type);
  if (kind == "rand_like") return Distribution::uniform(0, 1);
  if (kind == "randn_like") return Distribution::normal(0, 1);
  if (kind == "uniform") {
    check(number("from") <= number("to"), "from", "not above `to`");
    return Distribution::uniform(number("from"), number("to"));
  }
  if (kind == "normal" || kind == "normal_functional")
    return Distribution::normal(number("mean"), deviation());
  if (kind == "log_normal") {
    check(number("std") > 0, "std", "above 0");
    return Distribution::log_normal(number("mean"), number("std"));
  }
  if (kind == "exponential") {
    check(number("lambd") > 0, "lambd", "above 0");
    return Distribution::exponential(number("lambd"));
  }
  if (kind == "cauchy") {
    check(number("sigma") > 0, "sigma", "above 0");
    return Distribution::cauchy(number("median"), number("sigma"));
  }
  TORCH_INTERNAL_ASSERT(false, "`", call_.info().name, "` is not a random operator");
}

}  // namespace meshtorch
