// Samples of categories by their weights. Each is a function of seed, call and its global index, so that rows
// that are split stay split, and the samples are the same on any mesh.
#include <ATen/ATen.h>
#include <ATen/ops/multinomial_ops.h>

#include "decompose/distributions.h"
#include "decompose/families.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"
#include "tensor/random.h"

namespace meshtorch::internal {
namespace {

// The categories of a row are whole; rows lie as they did.
const Layout* rows_layout(const DTensorMeta& meta, std::int64_t category_dim) {
  Placements placements = meta.layout->placements;
  for (Placement& p : placements) {
    if (p.is_partial() || p.is_shard(category_dim)) p = Replicate();
  }
  return meta.mesh->layout(placements);
}

void check_arguments(const at::Tensor& weights, std::int64_t count, bool replacement) {
  TORCH_CHECK(weights.dim() == 1 || weights.dim() == 2, "multinomial: prob_dist must be 1 or 2 dim, got ",
              weights.dim());
  TORCH_CHECK(at::isFloatingType(weights.scalar_type()),
              "multinomial only supports floating-point dtypes for input, got: ", weights.scalar_type());
  TORCH_CHECK(weights.size(-1) > 0, "multinomial: there are no categories");
  TORCH_CHECK(count > 0, "cannot sample n_sample <= 0 samples, got ", count);
  TORCH_CHECK(replacement || count <= weights.size(-1),
              "cannot sample n_sample > prob_dist.size(-1) samples without replacement: ", count, " of ",
              weights.size(-1));
}

// On every rank alike, whoever holds the row that is wrong.
void check_weights(const at::Tensor& local, const Layout& rows) {
  if (local.is_meta() || !rows.mesh->coordinate() || !rows.mesh->backend().has_peers) return;
  const at::Tensor is_wrong = local.isfinite().logical_not().logical_or(local.lt(0));
  const at::Tensor is_empty = local.sum(-1).le(0);
  Placements pending = rows.placements;
  for (Placement& p : pending) p = p.is_shard() ? Partial() : p;
  const at::Tensor counts = redistribute_local(at::stack({is_wrong.sum(), is_empty.sum()}), {2},
                                               *rows.mesh->layout(pending), *rows.mesh->replicated());
  TORCH_CHECK(counts[0].item<std::int64_t>() == 0,
              "probability tensor contains either `inf`, `nan` or element < 0");
  TORCH_CHECK(counts[1].item<std::int64_t>() == 0,
              "invalid multinomial distribution (sum of probabilities <= 0)");
}

// The category whose part of the row's sum holds a random point of it.
at::Tensor drawn_again(const at::Tensor& local, const Shape& result_sizes, const Layout& rows) {
  const at::Tensor ends = local.to(at::kDouble).cumsum(-1);
  const at::Tensor total = ends.narrow(-1, ends.size(-1) - 1, 1);
  const at::TensorOptions options = local.options().dtype(at::kDouble);
  const Distribution uniform = checked_uniform({"multinomial", at::kDouble}, 0, 1);
  const at::Tensor points = random_local(result_sizes, rows, options, uniform) * total;
  const at::Tensor inside = at::minimum(points, at::nextafter(total, at::zeros_like(total)));
  return at::searchsorted(ends, inside, /*out_int32=*/false, /*right=*/true).clamp_max_(local.size(-1) - 1);
}

// Of weights divided by exponential numbers, the largest is at a category with the probability of that.
at::Tensor drawn_once(const at::Tensor& local, const Shape& sizes, std::int64_t count, const Layout& rows) {
  const at::ScalarType type = local.scalar_type() == at::kDouble ? at::kDouble : at::kFloat;
  const Distribution exponential = checked_exponential({"multinomial", type}, 1);
  const at::Tensor scores =
      local.to(type) / random_local(sizes, rows, local.options().dtype(type), exponential);
  return std::get<1>(scores.topk(count, -1));
}

at::Tensor multinomial(const at::Tensor& self, c10::SymInt num_samples, bool replacement,
                       std::optional<at::Generator> generator) {
  const DrawsFrom numbers("aten::multinomial", generator);
  const std::int64_t count = num_samples.expect_int();
  check_arguments(self, count, replacement);
  const DTensorMeta& meta = distributed(self, "multinomial");
  const Layout& rows = *rows_layout(meta, self.dim() - 1);
  compare_assumed(meta.assumed);
  const at::Tensor local = local_under(self, rows);
  check_weights(local, rows);
  Shape result_sizes = self.sizes().vec();
  result_sizes.back() = count;
  const at::Tensor drawn = replacement && count > 1 ? drawn_again(local, result_sizes, rows)
                                                    : drawn_once(local, self.sizes().vec(), count, rows);
  return wrap(drawn, &rows, result_sizes, dense_strides(result_sizes));
}

}  // namespace

void add_multinomial_decompositions(DecompositionTable& ops) { ops.add<at::_ops::multinomial>(multinomial); }

}  // namespace meshtorch::internal
