// The rotary position embedding: angles from positions, and the rotation of queries and keys by them.
#pragma once

#include <torch/types.h>

#include "config.h"

namespace llama {

// Cosine and sine of each angle: B batch (or 1), S positions, C width of a head.
struct Rotation {
  torch::Tensor cos_B1SC, sin_B1SC;
};

// The rotation of these positions, of which the model has seen `length` in all.
Rotation rotation_of(const torch::Tensor& positions_BS, std::int64_t length, const Config& config,
                     torch::Dtype dtype);

// Turns each pair (x[i], x[i + C/2]).
torch::Tensor rotate(const torch::Tensor& x_BHSC, const Rotation& rotation);

}  // namespace llama
