// What LibTorch's schemas and derivatives leave open or get wrong.
#include "operator/corrections.h"

#include <algorithm>

namespace meshtorch {
namespace {

constexpr WrittenArgument kWritten[] = {
    {"native_batch_norm", "running_mean"},           {"native_batch_norm", "running_var"},
    {"native_batch_norm.out", "running_mean"},       {"native_batch_norm.out", "running_var"},
    {"batch_norm_update_stats", "running_mean"},     {"batch_norm_update_stats", "running_var"},
    {"batch_norm_update_stats.out", "running_mean"}, {"batch_norm_update_stats.out", "running_var"},
};

constexpr std::string_view kPlainZeros[] = {
    "cat", "repeat", "sgn", "sgn_", "copysign.Tensor", "copysign_.Tensor", "nextafter", "nextafter_",
    // comparisons in place, and their other names
    "eq_.Scalar", "eq_.Tensor", "ne_.Scalar", "ne_.Tensor", "lt_.Scalar", "lt_.Tensor", "le_.Scalar",
    "le_.Tensor", "gt_.Scalar", "gt_.Tensor", "ge_.Scalar", "ge_.Tensor", "greater_.Scalar",
    "greater_.Tensor", "greater_equal_.Scalar", "greater_equal_.Tensor", "less_.Scalar", "less_.Tensor",
    "less_equal_.Scalar", "less_equal_.Tensor", "not_equal_.Scalar", "not_equal_.Tensor",
    // random numbers do not depend on what they are drawn for
    "poisson", "normal.Tensor_float", "normal.float_Tensor", "normal.Tensor_Tensor", "bernoulli.Tensor",
    "bernoulli_.Tensor",
    // of a tensor without elements
    "linalg_matrix_exp", "matrix_exp",
    // the second derivative by an input that only chooses places
    "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "replication_pad1d_backward", "replication_pad2d_backward",
    "replication_pad3d_backward"};

}  // namespace

std::span<const WrittenArgument> written_arguments() { return kWritten; }
std::span<const std::string_view> plain_zero_gradients() { return kPlainZeros; }

bool is_written_anyway(std::string_view op, std::string_view argument) {
  return std::ranges::any_of(kWritten,
                             [&](const WrittenArgument& w) { return w.op == op && w.argument == argument; });
}

bool has_plain_zero_gradient(std::string_view op) {
  return std::ranges::find(kPlainZeros, op) != std::end(kPlainZeros);
}

bool is_view_anyway(std::string_view op) { return op == "_unsafe_view"; }

}  // namespace meshtorch
