// Cross entropy of logits that are split along the classes: what loss_parallel() switches on.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace meshtorch::internal {

// Each runs on the shards if its tensor is split by class (forward: only inside a loss_parallel scope), and
// gives nothing if it is not.
std::optional<at::Tensor> class_split_log_softmax(const at::Tensor& self, std::int64_t dim,
                                                  bool half_to_float);
std::optional<at::Tensor> class_split_log_softmax_backward(const at::Tensor& gradient,
                                                           const at::Tensor& result, std::int64_t dim,
                                                           at::ScalarType input_dtype);
std::optional<std::tuple<at::Tensor, at::Tensor>> class_split_nll_loss(
    const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
    std::int64_t reduction, std::int64_t ignore_index);
std::optional<at::Tensor> class_split_nll_loss_backward(const at::Tensor& output_gradient,
                                                        const at::Tensor& self, const at::Tensor& target,
                                                        const std::optional<at::Tensor>& weight,
                                                        std::int64_t reduction, std::int64_t ignore_index,
                                                        const at::Tensor& total_weight);

}  // namespace meshtorch::internal
