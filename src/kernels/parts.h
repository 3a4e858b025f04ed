// Parts of tensors, one for each rank, as collectives need them: one after the other along dim 0, all of one
// size.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <vector>

namespace meshtorch::internal {

// The dim from the front; throws if a tensor of t's dims (at least one) has no such dim.
std::int64_t wrapped_dim(std::int64_t dim, const at::Tensor& t);

// The sizes of t with another one at `dim`.
std::vector<std::int64_t> sizes_with(const at::Tensor& t, std::int64_t dim, std::int64_t size);

// t, with zeros after it along `dim` up to `size`.
at::Tensor padded(const at::Tensor& t, std::int64_t dim, std::int64_t size);

// The parts of t along `dim` as torch::chunk makes them, padded to one size, stacked along dim 0.
at::Tensor stacked_parts(const at::Tensor& t, std::int64_t dim, int count);

// The inverse: joins parts along `dim`, of which part r has sizes[r] elements that count.
at::Tensor joined_parts(const at::Tensor& stacked, std::int64_t dim, const std::vector<std::int64_t>& sizes);

}  // namespace meshtorch::internal
