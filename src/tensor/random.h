// New shards of random numbers, and the call number that each takes.
#pragma once

#include <ATen/core/Tensor.h>

#include "core/distribution.h"
#include "core/shard.h"
#include "mesh/layout.h"

namespace meshtorch {

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

// Integers in [low, high). Throws ValueError if there are none.
Distribution integers_between(std::int64_t low, std::int64_t high);

}  // namespace meshtorch
