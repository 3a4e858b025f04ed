// Means and variances of what several ranks hold parts of.
#include "decompose/moments.h"

#include <ATen/ATen.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>

#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kNumbers = 3;  // of a rank for each line: mean, sum of squares, count
constexpr std::int64_t kFront = 2;    // dims before those of the tensor: the ranks, the numbers

// Lines of a tensor, some of whose dims are worked on.
class SplitLines {
 public:
  SplitLines(const at::Tensor& self, const std::vector<std::int64_t>& dims)
      : meta_(distributed(self, "a variance")), sizes_(self.sizes().vec()), is_reduced_(sizes_.size()) {
    for (const std::int64_t dim : dims)
      is_reduced_[static_cast<std::size_t>(c10::maybe_wrap_dim(dim, self.dim()))] = true;
    for (std::size_t d = 0; d < sizes_.size(); ++d) {
      if (is_reduced_[d]) dims_.push_back(static_cast<std::int64_t>(d));
    }
  }

  // Whether one small gather brings the ranks' moments together, and for less than two sums over the mesh.
  bool is_worth_gathering() const {
    const auto& placements = meta_.layout->placements;
    const bool is_pending =
        std::ranges::any_of(placements, [](const Placement& p) { return p.is_partial(); });
    if (is_pending || ranks() == 1 || dims_.empty()) return false;
    const AxisCost cost;
    const double bytes = static_cast<double>(count_of_lines()) * 8;
    const auto others = static_cast<double>(ranks() - 1);
    const double gathered = cost.latency_s + others * kNumbers * bytes * cost.seconds_per_byte;
    const double reduced = 2 * cost.latency_s + 4 * bytes * cost.seconds_per_byte;
    return gathered <= reduced;
  }

  LineMoments moments(const at::Tensor& self, double correction, bool keepdim) const {
    compare_assumed(meta_.assumed);
    const at::Tensor& local = meta_.local;
    const at::Tensor x = at::isReducedFloatingType(local.scalar_type()) ? local.to(at::kFloat) : local;
    double own = 1;
    for (const std::int64_t dim : dims_) own *= static_cast<double>(x.size(dim));
    const at::Tensor mean = x.sum(dims_, /*keepdim=*/true) / std::max(own, 1.0);
    const at::Tensor squares = (x - mean).square().sum(dims_, /*keepdim=*/true);
    const at::Tensor all = gathered(at::stack({mean, squares, at::full_like(mean, own)}).unsqueeze(0));
    const at::Tensor means = all.select(1, 0), deviations = all.select(1, 1), counts = all.select(1, 2);
    const at::Tensor whole_mean = (means * counts).sum(0) / count();
    const at::Tensor variance =
        (deviations + (means - whole_mean).square() * counts).sum(0) / std::max(count() - correction, 0.0);
    return {wrapped(whole_mean.to(self.scalar_type()), keepdim),
            wrapped(variance.to(self.scalar_type()), keepdim)};
  }

 private:
  bool is_over_lines(const Placement& p) const {
    return p.is_shard() && is_reduced_[static_cast<std::size_t>(p.dim())];
  }

  // The ranks that hold parts of a line.
  std::int64_t ranks() const {
    std::int64_t product = 1;
    for (std::size_t axis = 0; axis < meta_.layout->placements.size(); ++axis)
      product *= is_over_lines(meta_.layout->placements[axis]) ? meta_.mesh->shape()[axis] : 1;
    return product;
  }

  double count() const {
    double product = 1;
    for (const std::int64_t dim : dims_)
      product *= static_cast<double>(sizes_[static_cast<std::size_t>(dim)]);
    return product;
  }

  Shape kept_sizes() const {
    Shape sizes = sizes_;
    for (const std::int64_t dim : dims_) sizes[static_cast<std::size_t>(dim)] = 1;
    return sizes;
  }
  std::int64_t count_of_lines() const { return c10::multiply_integers(kept_sizes()); }

  // How a tensor lies that has the dims of the lines at `moved(dim)`; on the axes over lines, as said.
  template <typename Moved>
  const Layout* layout(const Placement& over_lines, const Moved& moved) const {
    Placements placements = meta_.layout->placements;
    for (Placement& p : placements) {
      if (is_over_lines(p)) {
        p = over_lines;
      } else if (p.is_shard()) {
        p = StridedShard(moved(p.dim()), p.split_factor());
      }
    }
    return meta_.mesh->layout(placements);
  }

  at::Tensor gathered(const at::Tensor& mine) const {
    const auto behind = [](std::int64_t dim) { return dim + kFront; };
    Shape shape{ranks(), kNumbers};
    for (const std::int64_t size : kept_sizes()) shape.push_back(size);
    return redistribute_local(mine, shape, *layout(Shard(0), behind), *layout(Replicate(), behind));
  }

  at::Tensor wrapped(const at::Tensor& local, bool keepdim) const {
    const Shape sizes = kept_sizes();
    if (keepdim) {
      const Layout* same = layout(Replicate(), [](std::int64_t dim) { return dim; });
      return wrap(local, same, sizes, dense_strides(sizes));
    }
    Shape left;
    for (std::size_t d = 0; d < sizes.size(); ++d) {
      if (!is_reduced_[d]) left.push_back(sizes[d]);
    }
    const auto fewer = [&](std::int64_t dim) {
      return dim - std::count(is_reduced_.begin(), is_reduced_.begin() + dim, true);
    };
    return wrap(local.squeeze(dims_), layout(Replicate(), fewer), left, dense_strides(left));
  }

  const DTensorMeta& meta_;
  const Shape sizes_;
  std::vector<bool> is_reduced_;
  std::vector<std::int64_t> dims_;
};

}  // namespace

std::optional<LineMoments> gathered_moments(const at::Tensor& self, const std::vector<std::int64_t>& dims,
                                            double correction, bool keepdim) {
  if (meta_of(self) == nullptr || self.numel() == 0 || !self.is_floating_point()) return std::nullopt;
  const SplitLines lines(self, dims);
  if (!lines.is_worth_gathering()) return std::nullopt;
  return lines.moments(self, correction, keepdim);
}

}  // namespace meshtorch::internal
