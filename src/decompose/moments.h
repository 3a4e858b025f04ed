// Means and variances of what several ranks hold parts of.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <vector>

namespace meshtorch::internal {

struct LineMoments {
  at::Tensor mean;
  at::Tensor variance;  // the sum of squares over the count less `correction`
};

// Of each line of a real tensor along `dims`, where these are split: every rank's own moments are gathered in
// one collective and put together, so that no small difference of large sums is taken. Nothing if no rank
// needs what another holds, if the tensor is pending, or if two sums over the mesh would send less.
std::optional<LineMoments> gathered_moments(const at::Tensor& self, const std::vector<std::int64_t>& dims,
                                            double correction, bool keepdim);

}  // namespace meshtorch::internal
