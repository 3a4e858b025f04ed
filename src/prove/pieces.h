// What each rank of a simulated mesh holds of a tensor, and the tensor that the ranks hold together. Nothing
// is communicated: all ranks are here.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "core/shard.h"

namespace meshtorch::internal {

// One tensor for each rank, in row-major order of the mesh's coordinates.
using Pieces = std::vector<at::Tensor>;

// The coordinates of all ranks, in that order.
std::vector<Shape> coordinates(const Shape& mesh);

// The terms of a pending sum or average are drawn from `seed`; copies are equal.
Pieces split_over(const at::Tensor& whole, const Placements& placements, const Shape& mesh,
                  std::uint64_t seed);

struct Joined {
  at::Tensor whole;
  double disagreement = 0;  // the largest difference between two copies that should be equal
};
Joined join(const Pieces& pieces, const Placements& placements, const Shape& mesh);

// Numbers of the given tensor's shape and type that have nothing to do with it.
at::Tensor random_like(const at::Tensor& tensor, std::uint64_t seed);

// The largest difference of two tensors of one shape; infinity where one has a number and the other none.
double largest_difference(const at::Tensor& a, const at::Tensor& b);

}  // namespace meshtorch::internal
