// Attention whose queries are split along the sequence: context parallelism.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

namespace meshtorch::internal {

// The arguments that scaled dot product attention has forward and backward.
struct AttentionCall {
  const at::Tensor& query;
  const at::Tensor& key;
  const at::Tensor& value;
  double dropout_p;
  bool is_causal;
  const std::optional<at::Tensor>& mask;
  std::optional<double> scale;
};

// Output and log-sum-exp, which stay split as the queries are; nothing if the queries are not split along the
// sequence, or the call has a form that only the rule knows.
std::optional<std::tuple<at::Tensor, at::Tensor>> sequence_attention(const AttentionCall& call);

// The gradients of queries, keys and values, which lie as these do.
std::optional<std::tuple<at::Tensor, at::Tensor, at::Tensor>> sequence_attention_backward(
    const AttentionCall& call, const at::Tensor& out_gradient, const at::Tensor& out,
    const at::Tensor& logsumexp);

}  // namespace meshtorch::internal
