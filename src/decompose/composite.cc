// Composite operators that LibTorch would decompose wrongly, or otherwise than on a real device.
#include <ATen/ATen.h>
#include <ATen/ops/feature_alpha_dropout_ops.h>
#include <ATen/ops/feature_dropout_ops.h>
#include <ATen/ops/fill_diagonal_ops.h>
#include <ATen/ops/scaled_dot_product_attention_ops.h>

#include <algorithm>
#include <cmath>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "decompose/sequence_order.h"
#include "decompose/sequence_split.h"
#include "runtime/differentiable.h"
#include "runtime/host_tensor.h"
#include "tensor/meta.h"
#include "tensor/random.h"
#include "tensor/redistribute.h"

namespace meshtorch::internal {
namespace {

namespace op = at::_ops;

// One number for each sample and channel, 1 with probability `keep`, lying as the input does, so that nothing
// has to move.
at::Tensor feature_noise(const at::Tensor& input, double keep) {
  TORCH_CHECK_VALUE(input.dim() >= 2, "meshtorch: feature dropout got a tensor with ", input.dim(),
                    " dims\n  argument: input\n  do: pass one with samples and "
                    "channels as its first two dims, or use dropout");
  const DTensorMeta& meta = distributed(input, "feature_dropout");
  Shape sizes(static_cast<std::size_t>(input.dim()), 1);
  sizes[0] = input.size(0);
  sizes[1] = input.size(1);
  Placements placements = meta.layout->placements;
  for (Placement& p : placements) {
    if (!p.is_shard(0) && !p.is_shard(1)) p = Replicate();
  }
  return random_tensor(sizes, *meta.mesh->layout(placements), meta.local.options(),
                       Distribution::bernoulli(keep));
}

at::Tensor dropped(const at::Tensor& input, double p) {
  return input.mul(feature_noise(input, 1 - p).div(1 - p));
}

// Keeps mean and variance of what selu gives; LibTorch's formula.
at::Tensor alpha_dropped(const at::Tensor& input, double p) {
  constexpr double kAlpha = 1.7580993408473766;
  const at::Tensor noise = feature_noise(input, 1 - p);
  const double a = 1 / std::sqrt((kAlpha * kAlpha * p + 1) * (1 - p));
  const at::Tensor shift = noise.add(-1).mul(kAlpha * a).add(kAlpha * a * p);
  return input.mul(noise.mul(a)).add(shift);
}

// LibTorch would draw the noise as a plain tensor, for each rank another one.
template <typename Op, at::Tensor (*drop)(const at::Tensor&, double), typename Schema = typename Op::schema>
struct FeatureDropout;

template <typename Op, at::Tensor (*drop)(const at::Tensor&, double)>
struct FeatureDropout<Op, drop, at::Tensor(const at::Tensor&, double, bool)> {
  static at::Tensor call(const at::Tensor& input, double p, bool train) {
    const bool draws = train && p > 0 && p < 1 && input.numel() > 0 && meta_of(input) != nullptr;
    return draws ? drop(input, p) : as_composite<Op>(input, p, train);
  }
};

template <typename Op, at::Tensor (*drop)(const at::Tensor&, double)>
struct FeatureDropout<Op, drop, at::Tensor&(at::Tensor&, double, bool)> {
  static at::Tensor& call(at::Tensor& self, double p, bool train) {
    const bool draws = train && p > 0 && p < 1 && self.numel() > 0 && meta_of(self) != nullptr;
    return draws ? self.copy_(drop(self, p)) : as_composite<Op>(self, p, train);
  }
};

// LibTorch would address the diagonal by strides. In a tall matrix that is wrapped the diagonal begins anew
// below each square, after one row without it.
at::Tensor& fill_diagonal(at::Tensor& self, const at::Scalar& value, bool wrap) {
  const at::IntArrayRef sizes = self.sizes();
  const bool is_cube = std::ranges::adjacent_find(sizes, std::ranges::not_equal_to()) == sizes.end();
  if (meta_of(self) == nullptr || sizes.size() < 2 || (sizes.size() > 2 && !is_cube))
    return as_composite<op::fill_diagonal_>(self, value, wrap);
  const std::int64_t rows = sizes[0], step = sizes[1] + 1;
  std::int64_t first = 0;
  do {  // also where there is nothing to fill: autograd has a say
    at::Tensor diagonal = self.slice(0, first).diagonal();
    while (diagonal.dim() > 1) diagonal = diagonal.diagonal(/*offset=*/0, 0, -1);
    diagonal.fill_(value);
    first += step;
  } while (wrap && sizes.size() == 2 && first < rows);
  return self;
}

// Causal attention on a sequence in another order, which its backward has to know too, wherever it runs.
at::Tensor attention_in_order(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                              std::optional<double> scale, SequenceOrder order) {
  struct Results {
    at::Tensor out, logsumexp;
  };
  const auto results = std::make_shared<Results>();
  const auto forward = [&](const std::vector<at::Tensor>& in) {
    std::tie(results->out, results->logsumexp) = at::_scaled_dot_product_flash_attention_for_cpu(
        in[0], in[1], in[2], 0, /*is_causal=*/true, std::nullopt, scale);
    return std::vector<at::Tensor>{results->out};
  };
  const auto backward = [=, q = query.detach(), k = key.detach(),
                         v = value.detach()](const std::vector<at::Tensor>& gradients) {
    const OrderScope scope(order);
    const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
        gradients[0], q, k, v, results->out.detach(), results->logsumexp, 0, /*is_causal=*/true, std::nullopt,
        scale);
    return std::vector<at::Tensor>{dq, dk, dv};
  };
  const std::vector<at::Tensor> inputs{query, key, value};
  at::Tensor out = differentiable("OrderedAttentionBackward", inputs, forward, backward, Holds::tensors)[0];
  results->out = out.detach();  // else it would keep its own graph
  return out;
}

// What a query sees in a sequence in this order.
at::Tensor causal_mask(std::int64_t queries, std::int64_t keys, const SequenceOrder& order) {
  const auto positions = [&](std::int64_t size) {
    return at::tensor(order.permutation(size), on_host(at::kLong));
  };
  return positions(keys).unsqueeze(0).le(positions(queries).unsqueeze(1));
}

// Whether the queries are split along the sequence, in the form that the fused kernel takes.
std::optional<SequenceSplit> split_of(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                      bool is_causal, std::optional<double> scale) {
  const std::optional<at::Tensor> no_mask;
  return sequence_split_of({query, key, value, /*dropout_p=*/0, is_causal, no_mask, scale});
}

// With dropout LibTorch writes attention out: the scores have the rows of the queries, and stay where these
// are if the keys are whole.
at::Tensor with_all_rows(const at::Tensor& tensor, const SequenceSplit& split) {
  Placements placements = split.key->placements;
  for (const int axis : split.key_axes) placements[static_cast<std::size_t>(axis)] = Replicate();
  const Layout* whole = split.mesh->layout(placements);
  return distributed(tensor, "attention").layout == whole ? tensor : redistribute_tensor(tensor, whole, {});
}

// In another order than the natural one by blocks that know it, or with a mask. On the meta device, the fused
// attention of the device that the mesh is of.
at::Tensor dot_product_attention(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
                                 const std::optional<at::Tensor>& mask, double dropout_p, bool is_causal,
                                 std::optional<double> scale, bool enable_gqa) {
  const DTensorMeta* meta = meta_of(query);
  const bool has_mask = mask && mask->defined();
  const SequenceOrder order = OrderScope::current();
  if (meta != nullptr && !order.is_natural() && is_causal && !has_mask) {
    if (dropout_p == 0 && split_of(query, key, value, is_causal, scale))
      return attention_in_order(query, key, value, scale, order);
    return dot_product_attention(query, key, value, causal_mask(query.size(-2), key.size(-2), order),
                                 dropout_p,
                                 /*is_causal=*/false, scale, enable_gqa);
  }
  if (dropout_p > 0) {
    if (const auto split = split_of(query, key, value, is_causal, scale))
      return as_composite<op::scaled_dot_product_attention>(query, with_all_rows(key, *split),
                                                            with_all_rows(value, *split), mask, dropout_p,
                                                            is_causal, scale, enable_gqa);
  }
  const bool is_on_shapes =
      meta != nullptr && query.is_meta() && meta->mesh->device_type() == c10::DeviceType::CPU;
  if (!is_on_shapes || query.dim() != 4 || has_mask || dropout_p != 0) {
    return as_composite<op::scaled_dot_product_attention>(query, key, value, mask, dropout_p, is_causal,
                                                          scale, enable_gqa);
  }
  return std::get<0>(
      at::_scaled_dot_product_flash_attention_for_cpu(query, key, value, 0, is_causal, std::nullopt, scale));
}

}  // namespace

void add_composite_decompositions(DecompositionTable& ops) {
  ops.add<op::feature_dropout>(FeatureDropout<op::feature_dropout, dropped>::call);
  ops.add<op::feature_dropout_>(FeatureDropout<op::feature_dropout_, dropped>::call);
  ops.add<op::feature_alpha_dropout>(FeatureDropout<op::feature_alpha_dropout, alpha_dropped>::call);
  ops.add<op::feature_alpha_dropout_>(FeatureDropout<op::feature_alpha_dropout_, alpha_dropped>::call);
  ops.add<op::fill_diagonal_>(fill_diagonal);
  ops.add<op::scaled_dot_product_attention>(dot_product_attention);
}

}  // namespace meshtorch::internal
