// The numbers that samples are made of.
#pragma once

#include "numbers.h"

namespace meshtorch::testing::inputs {

inline torch::Tensor x(at::IntArrayRef sizes, int64_t seed = 0) {
  return numbers(sizes, torch::kDouble, seed);
}
// No two equal, so that extrema and orders have one answer.
inline torch::Tensor distinct(at::IntArrayRef sizes) {
  const int64_t n = c10::multiply_integers(sizes);
  return ((torch::arange(n, torch::kDouble) * 7).remainder(static_cast<double>(std::max<int64_t>(n, 1))) / 5 -
          1 + torch::arange(n, torch::kDouble) / 1000)
      .view(sizes);
}
inline torch::Tensor positive(at::IntArrayRef sizes, int64_t seed = 0) { return x(sizes, seed).abs() + 0.25; }
inline torch::Tensor unit(at::IntArrayRef sizes) { return x(sizes) / 2.5; }  // inside (-1, 1)
inline torch::Tensor index(at::IntArrayRef sizes, int64_t below) {
  return (torch::arange(c10::multiply_integers(sizes), torch::kLong) * 5 + 1).remainder(below).view(sizes);
}

}  // namespace meshtorch::testing::inputs
