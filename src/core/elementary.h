// Logarithm, exponential, sine and cosine from the four operations, which every machine rounds alike. No
// torch.
//
// The C library's functions differ in the last bit from one processor to the next (it picks variants with
// fused multiply-add), and ranks on different machines must draw equal numbers. Errors are below
// 1e-15. Compile users of this header with -ffp-contract=off.
#pragma once

#include <bit>
#include <cstdint>

namespace meshtorch::internal {

namespace elementary {

// a + b x + c x^2 + …, by Horner's rule.
inline double polynomial(double, double last) { return last; }
template <typename... Rest>
inline double polynomial(double x, double first, Rest... rest) {
  return first + x * polynomial(x, rest...);
}

// The reciprocal of n!, exact where it matters: one division of exact numbers.
constexpr double inverse_factorial(int n) {
  double product = 1;
  for (int i = 2; i <= n; ++i) product *= i;
  return 1 / product;
}

// 2 atanh(f) for |f| <= 0.1716, which is log((1 + f) / (1 - f)).
inline double twice_atanh(double f) {
  const double s = f * f;
  const double series = polynomial(s, 1.0 / 3, 1.0 / 5, 1.0 / 7, 1.0 / 9, 1.0 / 11, 1.0 / 13, 1.0 / 15,
                                   1.0 / 17, 1.0 / 19, 1.0 / 21);
  return 2 * f + 2 * f * (s * series);
}

inline constexpr double kLn2High = 6.93147180369123816490e-01;  // 32 bits, so that multiples are exact
inline constexpr double kLn2Low = 1.90821492927058770002e-10;
inline constexpr double kTwoPi = 6.283185307179586476925;

}  // namespace elementary

// The natural logarithm of a positive, finite, normal number.
inline double portable_log(double x) {
  constexpr std::uint64_t kSqrtHalfBits =
      0x3FE6A09E667F3BCD;  // of sqrt(1/2), so that the rest is in [sqrt(1/2), sqrt(2))
  const std::uint64_t bits = std::bit_cast<std::uint64_t>(x) - kSqrtHalfBits;
  const double rest = std::bit_cast<double>((bits & 0xFFFFFFFFFFFFF) + kSqrtHalfBits);
  // The exponent, plus 2^11 to make it positive, as the last bits of 2^52 + exponent.
  constexpr std::uint64_t kBias = std::uint64_t{1} << 63;
  const double k = std::bit_cast<double>(((bits + kBias) >> 52) | 0x4330000000000000) - (0x1p52 + 0x1p11);
  return k * elementary::kLn2High +
         (elementary::twice_atanh((rest - 1) / (rest + 1)) + k * elementary::kLn2Low);
}

// log(1 + x) for x > -1, right for small x too.
inline double portable_log1p(double x) {
  return x > -0.25 && x < 0.25 ? elementary::twice_atanh(x / (2 + x)) : portable_log(1 + x);
}

// e to the x; 0 and infinity where that is out of range.
inline double portable_exp(double x) {
  if (x > 709) return __builtin_inf();
  if (x < -708) return 0;
  if (x != x) return x;
  const auto k = static_cast<std::int64_t>(x * 1.44269504088896340736 + (x < 0 ? -0.5 : 0.5));
  const auto times = static_cast<double>(k);
  const double r = (x - times * elementary::kLn2High) - times * elementary::kLn2Low;
  using elementary::inverse_factorial;
  const double series = elementary::polynomial(
      r, 1.0, 1.0, inverse_factorial(2), inverse_factorial(3), inverse_factorial(4), inverse_factorial(5),
      inverse_factorial(6), inverse_factorial(7), inverse_factorial(8), inverse_factorial(9),
      inverse_factorial(10), inverse_factorial(11), inverse_factorial(12), inverse_factorial(13));
  return series * std::bit_cast<double>(static_cast<std::uint64_t>(k + 1023) << 52);
}

struct SineAndCosine {
  double sine;
  double cosine;
};

// Of an angle given as a part of a full turn, in [0, 1).
inline SineAndCosine sine_and_cosine_of_turn(double turn) {
  const auto quarter = static_cast<std::int32_t>(turn * 4 + 0.5);
  const double x =
      (turn - quarter * 0.25) * elementary::kTwoPi;  // in [-pi / 4, pi / 4]; the difference is exact
  const double s = x * x;
  using elementary::inverse_factorial;
  using elementary::polynomial;
  const double sine = x + x * s *
                              polynomial(s, -inverse_factorial(3), inverse_factorial(5),
                                         -inverse_factorial(7), inverse_factorial(9), -inverse_factorial(11),
                                         inverse_factorial(13), -inverse_factorial(15));
  const double cosine =
      1 + s * polynomial(s, -0.5, inverse_factorial(4), -inverse_factorial(6), inverse_factorial(8),
                         -inverse_factorial(10), inverse_factorial(12), -inverse_factorial(14),
                         inverse_factorial(16));
  const bool swaps = (quarter & 1) != 0;
  const double a = swaps ? cosine : sine;
  const double b = swaps ? sine : cosine;
  return {(quarter & 2) != 0 ? -a : a, ((quarter + 1) & 2) != 0 ? -b : b};
}

}  // namespace meshtorch::internal
