// Attention over blocks of keys on one rank: partial results are merged by their log-sum-exp.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>
#include <tuple>

#include "decompose/attention_tiles.h"

namespace meshtorch::internal {

// What stays the same for all blocks.
struct AttentionTerms {
  at::Tensor query;
  // Additive or boolean, for all keys; undefined if there is none.
  at::Tensor mask;
  std::optional<double> scale;
};

class BlockwiseAttention {
 public:
  BlockwiseAttention(AttentionTerms terms, std::int64_t value_size);

  // Takes in the keys and values of a block, as far as the tiles say.
  void add(const at::Tensor& key, const at::Tensor& value, const std::vector<AttentionTile>& tiles);
  // Output and log-sum-exp, as LibTorch's kernel gives them of all keys together.
  std::tuple<at::Tensor, at::Tensor> result() const;

 private:
  AttentionTerms terms_;
  at::Tensor out_;        // of the type in which it is summed
  at::Tensor logsumexp_;  // minus infinity for a query that has seen nothing
};

class BlockwiseAttentionBackward {
 public:
  BlockwiseAttentionBackward(AttentionTerms terms, const at::Tensor& out_gradient, at::Tensor out,
                             at::Tensor logsumexp);

  // The gradients of a block's keys and values, as far as the tiles say.
  std::tuple<at::Tensor, at::Tensor> add(const at::Tensor& key, const at::Tensor& value,
                                         const std::vector<AttentionTile>& tiles);
  at::Tensor query_gradient() const;

 private:
  AttentionTerms terms_;
  at::Tensor out_gradient_;
  at::Tensor out_;
  at::Tensor logsumexp_;
  at::Tensor query_gradient_;  // of the type in which it is summed
};

}  // namespace meshtorch::internal
