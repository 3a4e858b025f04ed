// What LibTorch's schemas and derivatives leave open or get wrong.
#include "operator/corrections.h"

#include <algorithm>

namespace meshtorch::internal {
namespace {

constexpr NamedArgument kWritten[] = {
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
    "linalg_matrix_exp", "matrix_exp", "as_strided", "as_strided_copy",
    // the second derivative by an input that only chooses places
    "avg_pool2d_backward", "avg_pool3d_backward", "_adaptive_avg_pool2d_backward",
    "_adaptive_avg_pool3d_backward", "adaptive_max_pool2d_backward", "adaptive_max_pool3d_backward",
    "max_pool2d_with_indices_backward", "max_pool3d_with_indices_backward", "fractional_max_pool2d_backward",
    "fractional_max_pool3d_backward", "reflection_pad1d_backward", "reflection_pad2d_backward",
    "reflection_pad3d_backward", "replication_pad1d_backward", "replication_pad2d_backward",
    "replication_pad3d_backward"};

// Composite operators that read nothing of this argument but its shape and type.
constexpr NamedArgument kFormOnly[] = {
    {"_has_compatible_shallow_copy_type", "self"},
    {"_has_compatible_shallow_copy_type", "from"},
    {"expand_as", "other"},
    {"view_as", "other"},
    {"reshape_as", "other"},
    {"type_as", "other"},
    {"result_type.Tensor", "tensor"},
    {"result_type.Tensor", "other"},
    {"set_data", "self"},
    {"set_data", "new_data"},
};

// Recurrent networks: the modules make zeros where the user gives no state.
constexpr NamedArgument kZerosOfModules[] = {
    {"lstm.input", "hx"},     {"lstm.data", "hx"},     {"gru.input", "hx"},      {"gru.data", "hx"},
    {"rnn_tanh.input", "hx"}, {"rnn_tanh.data", "hx"}, {"rnn_relu.input", "hx"}, {"rnn_relu.data", "hx"},
    {"lstm_cell", "hx"},      {"gru_cell", "hx"},      {"rnn_tanh_cell", "hx"},  {"rnn_relu_cell", "hx"}};

// Bags of equal size: the functions of LibTorch count where each begins.
constexpr NamedArgument kCountedByFunctions[] = {{"embedding_bag", "offsets"},
                                                 {"embedding_bag.padding_idx", "offsets"}};

// Statistics that the CPU gives in the type of the input; LibTorch's shape functions in Python, in that of a
// GPU.
constexpr std::string_view kTypedByDevice[] = {"native_layer_norm", "native_batch_norm",
                                               "_native_batch_norm_legit", "_batch_norm_with_update"};

bool is_named(std::span<const NamedArgument> arguments, std::string_view op, std::string_view argument) {
  return std::ranges::any_of(arguments,
                             [&](const NamedArgument& a) { return a.op == op && a.argument == argument; });
}

}  // namespace

std::span<const NamedArgument> written_arguments() { return kWritten; }
std::span<const std::string_view> plain_zero_gradients() { return kPlainZeros; }

bool is_written_anyway(std::string_view op, std::string_view argument) {
  return is_named(kWritten, op, argument);
}

bool reads_form_only(std::string_view op, std::string_view argument) {
  return is_named(kFormOnly, op, argument);
}

bool is_zero_by_modules(std::string_view op, std::string_view argument) {
  return is_named(kZerosOfModules, op, argument);
}

bool is_counted_by_functions(std::string_view op, std::string_view argument) {
  return is_named(kCountedByFunctions, op, argument);
}

bool has_plain_zero_gradient(std::string_view op) {
  return std::ranges::find(kPlainZeros, op) != std::end(kPlainZeros);
}

bool has_types_by_device(std::string_view op) {
  return std::ranges::find(kTypedByDevice, op) != std::end(kTypedByDevice);
}

bool is_view_anyway(std::string_view op) { return op == "_unsafe_view"; }

}  // namespace meshtorch::internal
