// New shards of random numbers, and the call number that each takes.
#pragma once

#include <ATen/core/Generator.h>
#include <ATen/core/Tensor.h>

#include "core/distribution.h"
#include "core/shard.h"
#include "mesh/layout.h"

namespace meshtorch::internal {

// The next random call of this rank.
RandomCall take_random_call();

// This rank's shard of a new tensor of random numbers. Where the layout has a pending reduction it holds what
// makes up the numbers.
at::Tensor random_local(const Shape& sizes, const Layout& layout, const at::TensorOptions& options,
                        const Distribution& distribution);

// A new distributed tensor of random numbers.
at::Tensor random_tensor(const Shape& sizes, const Layout& layout, const at::TensorOptions& options,
                         const Distribution& distribution);

// A random permutation of 0 … n - 1, whole.
at::Tensor random_permutation(std::int64_t n);

// While it lives, on this thread, random calls take their seeds from the generator that a user passed, if
// there is one: each advances it by one number, so that ranks whose generators are equal draw alike, and stay
// equal.
class DrawsFrom {
 public:
  DrawsFrom(const char* op, const std::optional<at::Generator>& generator);
  ~DrawsFrom();
  DrawsFrom(const DrawsFrom&) = delete;
  DrawsFrom& operator=(const DrawsFrom&) = delete;

 private:
  std::optional<at::Generator> before_;
};

// Integers in [low, high). Throws ValueError if there are none, or the type does not hold them all.
Distribution integers_between(std::int64_t low, std::int64_t high, at::ScalarType type);
// Throws ValueError if the type does not reach from `least` to `largest`.
void check_integers(std::int64_t least, std::int64_t largest, at::ScalarType type);

}  // namespace meshtorch::internal
