// Fused attention: on split sequences by blocks of keys, else by its rule.
#include <ATen/ATen.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_backward_ops.h>
#include <ATen/ops/_scaled_dot_product_flash_attention_for_cpu_ops.h>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "decompose/sequence_attention.h"

namespace meshtorch::internal {
namespace {

namespace op = at::_ops;

std::tuple<at::Tensor, at::Tensor> flash_attention(const at::Tensor& query, const at::Tensor& key,
                                                   const at::Tensor& value, double dropout_p, bool is_causal,
                                                   const std::optional<at::Tensor>& mask,
                                                   std::optional<double> scale) {
  auto split = sequence_attention({query, key, value, dropout_p, is_causal, mask, scale});
  return split ? *split
               : by_rule<op::_scaled_dot_product_flash_attention_for_cpu>(query, key, value, dropout_p,
                                                                          is_causal, mask, scale);
}

std::tuple<at::Tensor, at::Tensor, at::Tensor> flash_attention_backward(
    const at::Tensor& out_gradient, const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
    const at::Tensor& out, const at::Tensor& logsumexp, double dropout_p, bool is_causal,
    const std::optional<at::Tensor>& mask, std::optional<double> scale) {
  auto split = sequence_attention_backward({query, key, value, dropout_p, is_causal, mask, scale},
                                           out_gradient, out, logsumexp);
  return split ? *split
               : by_rule<op::_scaled_dot_product_flash_attention_for_cpu_backward>(
                     out_gradient, query, key, value, out, logsumexp, dropout_p, is_causal, mask, scale);
}

}  // namespace

void add_attention_decompositions(DecompositionTable& ops) {
  constexpr Decomposition::Traits kElseByRule{.asks_rule = true};
  ops.add<op::_scaled_dot_product_flash_attention_for_cpu>(flash_attention, kElseByRule);
  ops.add<op::_scaled_dot_product_flash_attention_for_cpu_backward>(flash_attention_backward, kElseByRule);
}

}  // namespace meshtorch::internal
