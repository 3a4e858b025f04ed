// Data for tests: the same on every rank without communication or shared random state.
#pragma once

#include "ranks.h"

namespace meshtorch::testing {

// Small numbers that look random, exact in every floating type. `seed` gives others.
inline torch::Tensor numbers(at::IntArrayRef sizes, torch::ScalarType type = torch::kFloat,
                             int64_t seed = 0) {
  const int64_t count = c10::multiply_integers(sizes);
  const torch::Tensor steps = torch::arange(count, torch::kLong) * 37 + 11 * seed + 5;
  const torch::Tensor mixed = (steps * steps).remainder(101).remainder(17) - 8;
  return (mixed.to(torch::kDouble) / 4).to(type).view(sizes);
}

inline mt::DeviceMesh line(int n) { return mt::init_device_mesh(torch::kCPU, {n}, {"tp"}); }

// A tensor on a line of two ranks.
inline torch::Tensor split_in_two(const torch::Tensor& whole, const mt::Placement& placement) {
  return mt::distribute_tensor(whole, line(2), {placement});
}

}  // namespace meshtorch::testing
