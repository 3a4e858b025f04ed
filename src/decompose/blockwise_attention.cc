// Attention over blocks of keys on one rank, by LibTorch's fused kernel for the CPU.
#include "decompose/blockwise_attention.h"

#include <ATen/ATen.h>
#include <ATen/OpMathType.h>

#include <limits>

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kSequence = 2;  // the dim of queries, keys, outputs and log-sum-exps

// The kernel reads vectors whole.
at::Tensor with_whole_vectors(const at::Tensor& t) { return t.stride(-1) == 1 ? t : t.contiguous(); }

at::Tensor rows_in(const at::Tensor& t, const Range& range) {
  return t.narrow(kSequence, range.begin, range.size);
}

// The part of the mask for a tile; its rows are this rank's queries, or one for all.
std::optional<at::Tensor> mask_of(const at::Tensor& mask, const AttentionTile& tile) {
  if (!mask.defined()) return std::nullopt;
  const at::Tensor of_queries =
      mask.size(-2) == 1 ? mask : mask.narrow(-2, tile.queries.begin, tile.queries.size);
  return of_queries.narrow(-1, tile.first_key, tile.keys.size).contiguous();
}

// The queries of a tile that see none of its keys, of which the kernel says that their log-sum-exp is 0.
at::Tensor sees_nothing(const at::Tensor& mask) {
  return (mask.scalar_type() == at::kBool ? mask.logical_not() : mask.isneginf()).all(-1);
}

at::TensorOptions sum_options(const at::Tensor& t) {
  return t.options().dtype(at::toOpMathType(t.scalar_type()));
}

}  // namespace

BlockwiseAttention::BlockwiseAttention(AttentionTerms terms, std::int64_t value_size)
    : terms_(std::move(terms)) {
  terms_.query = with_whole_vectors(terms_.query);
  std::vector<std::int64_t> sizes = terms_.query.sizes().vec();
  sizes.back() = value_size;
  out_ = at::zeros(sizes, sum_options(terms_.query));
  sizes.pop_back();
  logsumexp_ = at::full(sizes, -std::numeric_limits<double>::infinity(), sum_options(terms_.query));
}

void BlockwiseAttention::add(const at::Tensor& key, const at::Tensor& value,
                             const std::vector<AttentionTile>& tiles) {
  const at::Tensor k = with_whole_vectors(key);
  const at::Tensor v = with_whole_vectors(value);
  for (const AttentionTile& tile : tiles) {
    const auto mask = mask_of(terms_.mask, tile);
    auto [out, logsumexp] = at::_scaled_dot_product_flash_attention_for_cpu(
        rows_in(terms_.query, tile.queries), rows_in(k, tile.keys), rows_in(v, tile.keys), /*dropout_p=*/0,
        tile.is_causal, mask, terms_.scale);
    if (mask)
      logsumexp = logsumexp.masked_fill(sees_nothing(*mask), -std::numeric_limits<double>::infinity());
    const at::Tensor before = rows_in(logsumexp_, tile.queries);
    const at::Tensor both = at::logaddexp(before, logsumexp);
    const auto share = [&](const at::Tensor& part) {
      const at::Tensor weight = (part - both).exp();
      // Where neither has seen a key.
      return (mask ? weight.masked_fill(both.isneginf(), 0) : weight).unsqueeze(-1);
    };
    const at::Tensor sum = rows_in(out_, tile.queries) * share(before) + out * share(logsumexp);
    rows_in(out_, tile.queries).copy_(sum);
    rows_in(logsumexp_, tile.queries).copy_(both);
  }
}

std::tuple<at::Tensor, at::Tensor> BlockwiseAttention::result() const {
  const at::Tensor logsumexp =
      terms_.mask.defined() ? logsumexp_.masked_fill(logsumexp_.isneginf(), 0) : logsumexp_;
  return {out_.to(terms_.query.scalar_type()), logsumexp};
}

BlockwiseAttentionBackward::BlockwiseAttentionBackward(AttentionTerms terms, const at::Tensor& out_gradient,
                                                       at::Tensor out, at::Tensor logsumexp)
    : terms_(std::move(terms)),
      out_gradient_(out_gradient.contiguous()),
      out_(with_whole_vectors(out)),
      logsumexp_(std::move(logsumexp)),
      query_gradient_(at::zeros(terms_.query.sizes(), sum_options(terms_.query))) {
  terms_.query = with_whole_vectors(terms_.query);
}

std::tuple<at::Tensor, at::Tensor> BlockwiseAttentionBackward::add(const at::Tensor& key,
                                                                   const at::Tensor& value,
                                                                   const std::vector<AttentionTile>& tiles) {
  const at::Tensor k = with_whole_vectors(key);
  const at::Tensor v = with_whole_vectors(value);
  const at::Tensor key_gradient = at::zeros(k.sizes(), sum_options(k));
  const at::Tensor value_gradient = at::zeros(v.sizes(), sum_options(v));
  for (const AttentionTile& tile : tiles) {
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        rows_in(out_gradient_, tile.queries), rows_in(terms_.query, tile.queries), rows_in(k, tile.keys),
        rows_in(v, tile.keys), rows_in(out_, tile.queries), rows_in(logsumexp_, tile.queries),
        /*dropout_p=*/0, tile.is_causal, mask_of(terms_.mask, tile), terms_.scale);
    rows_in(query_gradient_, tile.queries).add_(dq);
    rows_in(key_gradient, tile.keys).add_(dk);
    rows_in(value_gradient, tile.keys).add_(dv);
  }
  return {key_gradient, value_gradient};
}

at::Tensor BlockwiseAttentionBackward::query_gradient() const {
  return query_gradient_.to(terms_.query.scalar_type());
}

}  // namespace meshtorch::internal
