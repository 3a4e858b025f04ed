// What reductions of whole tensors have in common.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

namespace meshtorch::internal {

// The dims to reduce: all of them where none are given.
std::vector<std::int64_t> reduced_dims(const at::Tensor& self, at::OptionalIntArrayRef given = std::nullopt);

// How many elements of `self` went into each of `result`.
double elements_in_each(const at::Tensor& self, const at::Tensor& result);

}  // namespace meshtorch::internal
