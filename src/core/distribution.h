// From the four random words of an element to its value: uniform, normal and the other distributions. Pure
// functions, no torch.
#pragma once

#include <cmath>
#include <cstdint>

#include "core/elementary.h"
#include "core/philox.h"

namespace meshtorch::internal {

// What is drawn. Values are computed in double and rounded once, but for uniform ones, which are drawn with
// the bits of their type.
struct Distribution {
  enum class Kind : std::uint8_t {
    uniform,
    normal,
    integers,
    bernoulli,
    exponential,
    geometric,
    log_normal,
    cauchy
  };
  Kind kind;
  double a = 0;            // from, mean, probability, rate, median
  double b = 0;            // to, standard deviation, sigma
  std::int64_t low = 0;    // of integers
  std::uint64_t span = 0;  // how many integers from `low` on; 0: all 2^64

  static Distribution uniform(double from, double to) { return {Kind::uniform, from, to}; }
  static Distribution normal(double mean, double deviation) { return {Kind::normal, mean, deviation}; }
  static Distribution integers(std::int64_t low, std::uint64_t span) {
    return {Kind::integers, 0, 0, low, span};
  }
  static Distribution bernoulli(double probability) { return {Kind::bernoulli, probability}; }
  static Distribution exponential(double rate) { return {Kind::exponential, rate}; }
  static Distribution geometric(double probability) { return {Kind::geometric, probability}; }
  static Distribution log_normal(double mean, double deviation) {
    return {Kind::log_normal, mean, deviation};
  }
  static Distribution cauchy(double median, double sigma) { return {Kind::cauchy, median, sigma}; }
};

inline std::uint64_t join_words(std::uint32_t high, std::uint32_t low) {
  return (static_cast<std::uint64_t>(high) << 32) | low;
}

// In [0, 1), a multiple of 2^-digits: exact in a type of that many digits. Up to 24 digits are those of the
// first word.
template <int kDigits>
inline double unit(std::uint32_t first, std::uint32_t second) {
  if constexpr (kDigits <= 24) {
    return static_cast<double>(first >> (32 - kDigits)) / static_cast<double>(1u << kDigits);
  } else {
    return static_cast<double>(join_words(first, second) >> (64 - kDigits)) /
           static_cast<double>(std::uint64_t{1} << kDigits);
  }
}

// In [0, 1), a multiple of 2^-52: the fraction of a number in [1, 2), which needs no conversion.
inline double unit_52(std::uint32_t first, std::uint32_t second) {
  return std::bit_cast<double>((join_words(first, second) >> 12) | 0x3FF0000000000000) - 1;
}

// In (0, 1), neither end included.
inline double open_unit(std::uint32_t first, std::uint32_t second) {
  return unit_52(first, second) + 0x1p-53;
}

// Two independent normal numbers with mean 0 and variance 1 (Box and Muller).
struct NormalPair {
  double first;
  double second;
};
inline NormalPair normal_pair(const RandomWords& w) {
  const double radius = std::sqrt(-2 * portable_log(open_unit(w[0], w[1])));
  const SineAndCosine angle = sine_and_cosine_of_turn(unit_52(w[2], w[3]));
  return {radius * angle.cosine, radius * angle.sine};
}

inline double standard_normal(const RandomWords& w) { return normal_pair(w).first; }

// low + the high half of random * span. Of n values none is more likely than another by more than n / 2^64.
inline std::int64_t integer_of(const RandomWords& w, std::int64_t low, std::uint64_t span) {
  const std::uint64_t random = join_words(w[0], w[1]);
  if (span == 0) return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + random);
  __extension__ using Wide = unsigned __int128;
  const auto step = static_cast<std::uint64_t>((static_cast<Wide>(random) * span) >> 64);
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + step);
}

inline bool bernoulli_of(const RandomWords& w, double probability) {
  return unit<53>(w[0], w[1]) < probability;
}

inline double exponential_of(const RandomWords& w, double rate) {
  return -portable_log(open_unit(w[0], w[1])) / rate;
}

// The number of trials up to the first success, `log_failure` being log(1 - p).
inline double geometric_of(const RandomWords& w, double log_failure) {
  return std::fmax(1, std::ceil(portable_log(open_unit(w[0], w[1])) / log_failure));
}

inline double log_normal_of(const RandomWords& w, double mean, double deviation) {
  return portable_exp(mean + deviation * standard_normal(w));
}

inline double cauchy_of(const RandomWords& w, double median, double sigma) {
  // tan(pi (u - 1/2)) is -cot(pi u), and pi u is u / 2 of a turn.
  const SineAndCosine angle = sine_and_cosine_of_turn(open_unit(w[0], w[1]) / 2);
  return median - sigma * (angle.cosine / angle.sine);
}

}  // namespace meshtorch::internal
