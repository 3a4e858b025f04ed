// Batch normalization of a batch that is split: ranks exchange statistics, never the batch, and what was
// split stays split, forward and backward.
#include <ATen/ATen.h>
#include <ATen/ops/_native_batch_norm_legit_ops.h>
#include <ATen/ops/native_batch_norm_backward_ops.h>
#include <ATen/ops/native_batch_norm_ops.h>

#include <algorithm>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

using OptionalTensor = std::optional<at::Tensor>;
using BatchNorm = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

constexpr std::int64_t kChannelDim = 1;

// How a batch lies, and what follows from it for numbers that there is one of for each channel.
class SplitBatch {
 public:
  SplitBatch(MeshImpl& mesh, Placements placements, c10::IntArrayRef sizes)
      : mesh_(mesh), sizes_(sizes.vec()), placements_(std::move(placements)) {
    for (Placement& p : placements_) p = p.is_partial() ? Replicate() : p;
    for (std::int64_t dim = 0; dim < static_cast<std::int64_t>(sizes_.size()); ++dim) {
      if (dim != kChannelDim) reduced_dims_.push_back(dim);
    }
  }

  bool is_split() const {
    return std::ranges::any_of(placements_, [](const Placement& p) { return p.is_shard(); });
  }
  // Whether ranks hold different samples, or places, of a channel.
  bool is_over_samples() const {
    return std::ranges::any_of(placements_, [](const Placement& p) { return is_of_samples(p); });
  }

  const Layout* layout() const { return mesh_.layout(placements_); }
  // Of a number for each channel, the sum of what ranks hold of it being `samples`.
  const Layout* channel_layout(const Placement& samples) const {
    return statistics_layout(/*channel_dim=*/0, samples);
  }

  std::int64_t channels() const { return sizes_[kChannelDim]; }
  // The numbers in one channel of the whole batch.
  double count() const {
    double product = 1;
    for (const std::int64_t dim : reduced_dims_)
      product *= static_cast<double>(sizes_[static_cast<std::size_t>(dim)]);
    return product;
  }

  at::Tensor sum(const at::Tensor& local) const { return local.sum(reduced_dims_); }
  // A number for each channel, where it meets the batch.
  at::Tensor along_channels(const at::Tensor& each) const {
    Shape shape(sizes_.size(), 1);
    shape[kChannelDim] = each.numel();
    return each.reshape(shape);
  }
  at::Tensor wrapped_channels(const at::Tensor& local, const Placement& samples) const {
    return wrap(local, channel_layout(samples), {channels()}, {1});
  }

  // Every rank's numbers for each channel, [ranks that share the channel, numbers, channels], in one
  // collective. `mine` is [numbers, channels].
  at::Tensor gathered(const at::Tensor& mine) const {
    if (!is_over_samples()) return mine.unsqueeze(0);
    std::int64_t ranks = 1;
    for (std::size_t axis = 0; axis < placements_.size(); ++axis)
      ranks *= is_of_samples(placements_[axis]) ? mesh_.shape()[axis] : 1;
    return redistribute_local(mine.unsqueeze(0), {ranks, mine.size(0), channels()},
                              *statistics_layout(/*channel_dim=*/2, Shard(0)),
                              *statistics_layout(/*channel_dim=*/2, Replicate()));
  }
  // Their sum over these ranks: [numbers, channels].
  at::Tensor summed(const at::Tensor& mine) const {
    return redistribute_local(mine, {mine.size(0), channels()}, *statistics_layout(1, Partial()),
                              *statistics_layout(1, Replicate()));
  }

  // This rank's part of a tensor of the batch's shape, or of one number for each channel.
  at::Tensor local_of(const at::Tensor& tensor) const { return local_as(tensor, *layout()); }
  at::Tensor local_channels(const at::Tensor& tensor) const {
    return local_as(tensor, *channel_layout(Replicate()));
  }

 private:
  static bool is_of_samples(const Placement& p) { return p.is_shard() && !p.is_shard(kChannelDim); }

  const Layout* statistics_layout(std::int64_t channel_dim, const Placement& samples) const {
    Placements placements = placements_;
    for (Placement& p : placements) {
      if (p.is_shard(kChannelDim)) {
        p = StridedShard(channel_dim, p.split_factor());
      } else if (is_of_samples(p)) {
        p = samples;
      }
    }
    return mesh_.layout(placements);
  }

  MeshImpl& mesh_;
  const Shape sizes_;
  Placements placements_;
  std::vector<std::int64_t> reduced_dims_;
};

bool is_given(const OptionalTensor& tensor) { return tensor.has_value() && tensor->defined(); }

// Sums of narrow types are made in float.
at::Tensor widened(const at::Tensor& tensor) {
  return at::isReducedFloatingType(tensor.scalar_type()) ? tensor.to(at::kFloat) : tensor;
}

// Empty if the operator's rule is to run it: nothing is split, or no rank needs another's samples.
std::optional<SplitBatch> split_batch(const at::Tensor& input) {
  const DTensorMeta* meta = meta_of(input);
  if (meta == nullptr || input.dim() < 2) return std::nullopt;
  SplitBatch batch(*meta->mesh, meta->layout->placements, input.sizes());
  if (!batch.is_over_samples() || batch.count() == 0) return std::nullopt;
  return batch;
}

struct Moments {
  at::Tensor mean;
  at::Tensor variance;  // biased
};

// The moments of all ranks' samples, of each rank's own ones: no small difference of large sums is taken.
Moments moments_of(const SplitBatch& batch, const at::Tensor& x) {
  const double count =
      x.numel() == 0 ? 0.0 : static_cast<double>(x.numel()) / static_cast<double>(x.size(kChannelDim));
  const at::Tensor own_mean = batch.sum(x) / std::max(count, 1.0);
  const at::Tensor own_deviation = batch.sum((x - batch.along_channels(own_mean)).square());
  const at::Tensor all = batch.gathered(at::stack({own_mean, own_deviation, at::full_like(own_mean, count)}));
  const at::Tensor means = all.select(1, 0);
  const at::Tensor deviations = all.select(1, 1);
  const at::Tensor counts = all.select(1, 2);
  const at::Tensor mean = (means * counts).sum(0) / batch.count();
  return {mean, (deviations + (means - mean).square() * counts).sum(0) / batch.count()};
}

void update(const OptionalTensor& running, const at::Tensor& now, double momentum) {
  if (is_given(running)) running->mul_(1 - momentum).add_(now.to(running->scalar_type()), momentum);
}

// The saved statistics have the parameters' type where that differs from the batch's.
at::ScalarType statistics_type(const at::Tensor& input,
                               std::initializer_list<const OptionalTensor*> parameters) {
  for (const OptionalTensor* parameter : parameters) {
    if (is_given(*parameter)) return (*parameter)->scalar_type();
  }
  return input.scalar_type();
}

BatchNorm normalized(const SplitBatch& batch, const at::Tensor& input, const OptionalTensor& weight,
                     const OptionalTensor& bias, const OptionalTensor& running_mean,
                     const OptionalTensor& running_var, double momentum, double eps) {
  compare_assumed(distributed(input, "batch_norm").assumed);
  const at::Tensor x = widened(batch.local_of(input));
  const Moments moments = moments_of(batch, x);
  const double unbiased = batch.count() / (batch.count() - 1);
  update(running_mean, batch.wrapped_channels(moments.mean, Replicate()), momentum);
  update(running_var, batch.wrapped_channels(moments.variance * unbiased, Replicate()), momentum);
  const at::Tensor inverse = (moments.variance + eps).rsqrt();
  at::Tensor scale = inverse;
  if (is_given(weight)) scale = scale * widened(batch.local_channels(*weight));
  at::Tensor offset = -(moments.mean * scale);
  if (is_given(bias)) offset = offset + widened(batch.local_channels(*bias));
  const at::Tensor y = x * batch.along_channels(scale) + batch.along_channels(offset);
  const at::ScalarType saved = statistics_type(input, {&weight, &bias, &running_mean, &running_var});
  return {wrap(y.to(input.scalar_type()), batch.layout(), input.sizes(),
               dense_strides_like(input.sizes(), input.strides())),
          batch.wrapped_channels(moments.mean.to(saved), Replicate()),
          batch.wrapped_channels(inverse.to(saved), Replicate())};
}

BatchNorm batch_norm(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                     const OptionalTensor& running_mean, const OptionalTensor& running_var, bool training,
                     double momentum, double eps) {
  const auto batch = training ? split_batch(input) : std::nullopt;
  if (batch) return normalized(*batch, input, weight, bias, running_mean, running_var, momentum, eps);
  return by_rule<at::_ops::native_batch_norm>(input, weight, bias, running_mean, running_var, training,
                                              momentum, eps);
}

BatchNorm batch_norm_legit(const at::Tensor& input, const OptionalTensor& weight, const OptionalTensor& bias,
                           at::Tensor& running_mean, at::Tensor& running_var, bool training, double momentum,
                           double eps) {
  const auto batch = training ? split_batch(input) : std::nullopt;
  if (batch) return normalized(*batch, input, weight, bias, running_mean, running_var, momentum, eps);
  return by_rule<at::_ops::_native_batch_norm_legit>(input, weight, bias, running_mean, running_var, training,
                                                     momentum, eps);
}

BatchNorm batch_norm_legit_no_stats(const at::Tensor& input, const OptionalTensor& weight,
                                    const OptionalTensor& bias, bool training, double momentum, double eps) {
  const auto batch = training ? split_batch(input) : std::nullopt;
  if (batch) return normalized(*batch, input, weight, bias, {}, {}, momentum, eps);
  return by_rule<at::_ops::_native_batch_norm_legit_no_stats>(input, weight, bias, training, momentum, eps);
}

// The batch as its input lies, or as the gradient does where only that is split.
std::optional<SplitBatch> split_backward(const at::Tensor& input, const at::Tensor& gradient) {
  for (const at::Tensor* tensor : {&input, &gradient}) {
    const DTensorMeta* meta = meta_of(*tensor);
    if (meta == nullptr || input.dim() < 2 || input.numel() == 0) continue;
    SplitBatch batch(*meta->mesh, meta->layout->placements, input.sizes());
    if (batch.is_split()) return batch;
  }
  return std::nullopt;
}

BatchNorm batch_norm_backward(const at::Tensor& gradient, const at::Tensor& input,
                              const OptionalTensor& weight, const OptionalTensor& running_mean,
                              const OptionalTensor& running_var, const OptionalTensor& save_mean,
                              const OptionalTensor& save_invstd, bool train, double eps,
                              std::array<bool, 3> output_mask) {
  const auto batch = split_backward(input, gradient);
  if (!batch) {
    return by_rule<at::_ops::native_batch_norm_backward>(gradient, input, weight, running_mean, running_var,
                                                         save_mean, save_invstd, train, eps, output_mask);
  }
  for (const at::Tensor* tensor : {&gradient, &input}) {
    if (const DTensorMeta* meta = meta_of(*tensor)) compare_assumed(meta->assumed);
  }
  const at::Tensor x = widened(batch->local_of(input));
  const at::Tensor dy = widened(batch->local_of(gradient));
  const at::Tensor mean = widened(batch->local_channels(train ? *save_mean : *running_mean));
  const at::Tensor inverse = train ? widened(batch->local_channels(*save_invstd))
                                   : (widened(batch->local_channels(*running_var)) + eps).rsqrt();
  const at::Tensor centred = x - batch->along_channels(mean);
  // Sums of the gradient, and of it times the input. The input's gradient needs them whole where the
  // statistics are the batch's own.
  at::Tensor sums = at::stack({batch->sum(dy), batch->sum(dy * centred)});
  Placement lies = Partial();
  if (train && output_mask[0]) {
    sums = batch->summed(sums);
    lies = Replicate();
  }
  BatchNorm result;
  if (output_mask[0]) {
    at::Tensor dx = dy;
    if (train) {
      const at::Tensor means = sums / batch->count();
      dx =
          dx - batch->along_channels(means[0]) - centred * batch->along_channels(means[1] * inverse.square());
    }
    const at::Tensor scale = is_given(weight) ? inverse * widened(batch->local_channels(*weight)) : inverse;
    std::get<0>(result) = wrap((dx * batch->along_channels(scale)).to(input.scalar_type()), batch->layout(),
                               input.sizes(), dense_strides_like(input.sizes(), input.strides()));
  }
  const at::ScalarType type = statistics_type(input, {&weight});
  if (output_mask[1]) std::get<1>(result) = batch->wrapped_channels((sums[1] * inverse).to(type), lies);
  if (output_mask[2]) std::get<2>(result) = batch->wrapped_channels(sums[0].to(type), lies);
  return result;
}

}  // namespace

void add_batch_norm_decompositions(DecompositionTable& ops) {
  namespace op = at::_ops;
  ops.add<op::native_batch_norm>(batch_norm, {.asks_rule = true});
  ops.add<op::_native_batch_norm_legit>(batch_norm_legit, {.asks_rule = true});
  ops.add<op::_native_batch_norm_legit_no_stats>(batch_norm_legit_no_stats, {.asks_rule = true});
  ops.add<op::native_batch_norm_backward>(batch_norm_backward, {.asks_rule = true});
}

}  // namespace meshtorch::internal
