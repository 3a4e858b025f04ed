// Reductions that are sums and counts, and quotients: right for shards of any size, and pending sums stay
// pending.
#include <ATen/ATen.h>
#include <ATen/ops/div_ops.h>
#include <ATen/ops/histc_ops.h>
#include <ATen/ops/mean_ops.h>
#include <ATen/ops/std_ops.h>
#include <ATen/ops/var_ops.h>

#include <c10/core/WrapDimMinimal.h>

#include <numeric>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "decompose/moments.h"
#include "decompose/reduced_dims.h"
#include "meshtorch/collectives.h"
#include "operator/known_number.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

std::vector<std::int64_t> reduced_dims(const at::Tensor& self, at::OptionalIntArrayRef given) {
  if (given && !given->empty() && self.dim() > 0) return given->vec();
  for (const std::int64_t dim : given.value_or(at::IntArrayRef())) c10::maybe_wrap_dim(dim, self.dim());
  std::vector<std::int64_t> all(static_cast<std::size_t>(self.dim()));
  std::iota(all.begin(), all.end(), 0);
  return all;
}

double elements_in_each(const at::Tensor& self, const at::Tensor& result) {
  return static_cast<double>(self.numel()) / static_cast<double>(std::max<std::int64_t>(result.numel(), 1));
}

namespace {

// A mean is a sum divided by the global count.
at::Tensor mean_dim(const at::Tensor& self, at::OptionalIntArrayRef dim, bool keepdim,
                    std::optional<at::ScalarType> dtype) {
  const at::ScalarType type = dtype.value_or(self.scalar_type());
  TORCH_CHECK(at::isFloatingType(type) || at::isComplexType(type),
              "mean(): could not infer output dtype. Input dtype must be either a floating point or complex "
              "dtype. Got: ",
              type);
  const at::Tensor sum = at::sum(self, reduced_dims(self, dim), keepdim, dtype);
  return sum.div(elements_in_each(self, sum));
}

at::Tensor mean(const at::Tensor& self, std::optional<at::ScalarType> dtype) {
  return mean_dim(self, std::nullopt, false, dtype);
}

// From squares of distances to the mean.
at::Tensor variance(const at::Tensor& self, at::OptionalIntArrayRef dim,
                    const std::optional<at::Scalar>& correction, bool keepdim) {
  const std::vector<std::int64_t> dims = reduced_dims(self, dim);
  const double less = correction ? correction->toDouble() : 1.0;
  if (const auto moments = gathered_moments(self, dims, less, keepdim)) return moments->variance;
  const at::Tensor center = at::mean(self, dims, /*keepdim=*/true);
  const at::Tensor squares = (self - center).abs().square().sum(dims, keepdim);
  return squares.div(std::max(elements_in_each(self, squares) - less, 0.0));
}

at::Tensor standard_deviation(const at::Tensor& self, at::OptionalIntArrayRef dim,
                              const std::optional<at::Scalar>& correction, bool keepdim) {
  return variance(self, dim, correction, keepdim).sqrt();
}

// The terms of a pending row, below each other, by one gather; the row itself if it is not pending.
at::Tensor gathered_terms(const at::Tensor& row) {
  const DTensorMeta* meta = meta_of(row);
  if (meta == nullptr) return row.unsqueeze(0);
  Placements apart = meta->layout->placements;
  std::int64_t ranks = 1;
  for (std::size_t axis = 0; axis < apart.size(); ++axis) {
    if (!apart[axis].is_partial()) continue;
    apart[axis] = Shard(0);
    ranks *= meta->mesh->shape()[axis];
  }
  compare_assumed(meta->assumed);
  return wait_tensor(redistribute_local(meta->local.unsqueeze(0), {ranks, row.size(0)},
                                        *meta->mesh->layout(apart), *meta->mesh->replicated()));
}

// The smallest and the largest element, which all ranks learn in one collective. Two numbers of each rank are
// no more to gather than to reduce.
std::pair<double, double> limits_of(const at::Tensor& self) {
  const at::Tensor limits = gathered_terms(at::stack({self.max(), self.min().neg()})).amax(0);
  return {-limits[1].item().toDouble(), limits[0].item().toDouble()};
}

// Equal limits stand for none: they are the smallest and the largest element; if these are equal, one to each
// side of them.
at::Tensor histc(const at::Tensor& self, std::int64_t bins, const at::Scalar& min, const at::Scalar& max) {
  if (min.toDouble() != max.toDouble() || self.numel() == 0)
    return by_rule<at::_ops::histc>(self, bins, min, max);
  const auto [low, high] = limits_of(self);
  const double margin = low == high ? 1 : 0;
  return by_rule<at::_ops::histc>(self, bins, low - margin, high + margin);
}

// Terms that are divided by zero are infinite and do not add up to the quotient of their sum. So a tensor
// that divides a pending sum is looked at: every rank has all of it, and sees the same.
bool is_divided_by_nonzero(const at::Tensor& self, const at::Tensor& other) {
  const DTensorMeta* meta = meta_of(self);
  return meta != nullptr && meta->layout->has_partial && other.dim() > 0 &&
         known_numbers(other) == KnownNumber::nonzero;
}

at::Tensor divide(const at::Tensor& self, const at::Tensor& other) {
  if (!is_divided_by_nonzero(self, other)) return by_rule<at::_ops::div_Tensor>(self, other);
  const KnownNonzero scope(other);
  return by_rule<at::_ops::div_Tensor>(self, other);
}

at::Tensor& divide_(at::Tensor& self, const at::Tensor& other) {
  if (!is_divided_by_nonzero(self, other)) return by_rule<at::_ops::div__Tensor>(self, other);
  const KnownNonzero scope(other);
  return by_rule<at::_ops::div__Tensor>(self, other);
}

}  // namespace

void add_reduce_decompositions(DecompositionTable& ops) {
  namespace op = at::_ops;
  ops.add<op::mean>(mean);
  ops.add<op::mean_dim>(mean_dim);
  ops.add<op::var_correction>(variance);
  ops.add<op::std_correction>(standard_deviation);
  ops.add<op::histc>(histc, {.asks_rule = true});
  ops.add<op::div_Tensor>(divide, {.asks_rule = true});
  ops.add<op::div__Tensor>(divide_, {.asks_rule = true});
}

}  // namespace meshtorch::internal
