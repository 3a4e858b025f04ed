// The comparison of what a placed call gave with what the plain call gives.
#pragma once

#include "placed_call.h"

namespace meshtorch::testing {

// What the test found, in contrast to what an operator threw.
struct Mismatch : std::runtime_error {
  explicit Mismatch(const std::string& what, bool is_little = false)
      : std::runtime_error(what), is_small(is_little) {}
  bool is_small;  // numbers that lie apart, but not far
};

// Throws a Mismatch unless shapes, types and numbers of all results, arguments and gradients agree.
void compare_runs(const PlacedCall& placed, const Run& actual, const Run& expected);

bool is_differentiable(const torch::Tensor& t);
// Autograd has no part in what is written to a tensor that was passed for it.
bool writes_out(const Call& call);

}  // namespace meshtorch::testing
