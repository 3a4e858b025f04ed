// Cross entropy of logits that are split along the classes. Only one number for each sample is communicated,
// never the logits.
#include "decompose/class_split_loss.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <limits>
#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "dispatch/mixing.h"
#include "meshtorch/collectives.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/memory_state.h"
#include "world/agree.h"
#include "world/exit_reason.h"

namespace meshtorch::internal {
namespace {

// at::Reduction
constexpr std::int64_t kNone = 0, kMean = 1, kSum = 2;

// A tensor that is split along `dim`, the classes, in one run on each rank.
struct ClassSplit {
  const DTensorMeta* meta;
  at::Tensor global;
  std::int64_t dim;
  Range held;  // the classes of this rank

  const Placements& placements() const { return meta->layout->placements; }
  std::vector<int> class_axes() const {
    std::vector<int> axes;
    for (std::size_t axis = 0; axis < placements().size(); ++axis) {
      if (placements()[axis].is_shard(dim)) axes.push_back(static_cast<int>(axis));
    }
    return axes;
  }
  at::Tensor reduced(at::Tensor local, const char* op) const {
    for (const int axis : class_axes()) local = wait_tensor(all_reduce(local, op, meta->mesh->group({axis})));
    return local;
  }
  // Of the ranks that reduce together.
  bool all_say(const char* question, bool mine) const {
    const MeshImpl& mesh = *meta->mesh;
    return mesh.backend().has_peers ? internal::all_say(mesh.group(class_axes()), question, mine) : mine;
  }
};

std::optional<ClassSplit> as_class_split(const at::Tensor& tensor, std::int64_t dim) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr || tensor.dim() == 0 || meta->layout->has_partial || !meta->mesh->coordinate())
    return std::nullopt;
  ClassSplit split{meta, tensor, dim < 0 ? dim + tensor.dim() : dim, {}};
  // By the layout, which all ranks have: of several runs, some ranks may hold one.
  const bool is_strided = std::ranges::any_of(
      split.placements(), [&](const Placement& p) { return p.is_shard(split.dim) && p.split_factor() > 1; });
  if (is_strided || split.class_axes().empty()) return std::nullopt;
  const auto held = held_ranges(tensor.size(split.dim), split.dim, split.placements(), meta->mesh->shape(),
                                coordinate_in(*meta->mesh));
  if (!held.empty()) split.held = held[0];
  return split;
}

// The classes of log-probabilities and logits of a loss: dim 1, or the only one.
std::int64_t class_dim_of(const at::Tensor& logits) { return logits.dim() >= 2 ? 1 : 0; }

// How the targets, or the unreduced losses, of such logits lie: whole along the classes, as the logits along
// the other dims.
const Layout* target_layout(const ClassSplit& split) {
  Placements placements = split.placements();
  for (Placement& p : placements) {
    if (!p.is_shard()) continue;
    if (p.dim() == split.dim) {
      p = Replicate();
    } else if (p.dim() > split.dim) {
      p = StridedShard(p.dim() - 1, p.split_factor());
    }
  }
  return split.meta->mesh->layout(placements);
}

at::Tensor whole(const at::Tensor& tensor, MeshImpl& mesh) {
  return wait_tensor(local_as(tensor, *mesh.replicated()));
}

// The classes' weights, chosen by the targets, zero for those that are ignored.
struct Targets {
  at::Tensor index;    // in this rank's classes, 0 for the others
  at::Tensor is_here;  // of the targets that count, those of this rank's classes
  at::Tensor weight;   // 0 for a target that is ignored
  at::Tensor counts;   // false for a target that is ignored
};

// Each rank looks at the targets that it has: the others may have right ones.
void check_targets(const at::Tensor& chosen, std::int64_t classes, MeshImpl& mesh) {
  if (!chosen.is_cpu() || chosen.numel() == 0) return;
  if (chosen.ge(0).logical_and(chosen.lt(classes)).all().item<bool>()) return;
  try {
    TORCH_CHECK_INDEX(false, "meshtorch: a target is out of bounds\n  classes: ", classes,
                      "\n  do: give targets from 0 to ", classes - 1, ", or ignore_index");
  } catch (...) {
    tell_failed_call(mesh.ranks_of_root(), std::current_exception());
    throw;
  }
}

Targets targets_of(const at::Tensor& target, const std::optional<at::Tensor>& weight,
                   std::int64_t ignore_index, const ClassSplit& split, MeshImpl& mesh, at::ScalarType dtype) {
  const std::int64_t classes = split.global.size(split.dim);
  const at::Tensor counts = target.ne(ignore_index);
  const at::Tensor chosen = target.masked_fill(counts.bitwise_not(), 0);
  check_targets(chosen, classes, mesh);
  const at::Tensor shifted = chosen - split.held.begin;
  const at::Tensor is_here = shifted.ge(0).bitwise_and_(shifted.lt(split.held.size)).bitwise_and_(counts);
  at::Tensor each = counts.to(dtype);
  if (weight && weight->defined()) {
    each = each * whole(*weight, mesh).to(dtype).index_select(0, chosen.reshape(-1)).view(chosen.sizes());
  }
  return {shifted.masked_fill(is_here.bitwise_not(), 0), is_here, each, counts};
}

Shape global_target_shape(const ClassSplit& split) {
  Shape shape = split.global.sizes().vec();
  shape.erase(shape.begin() + split.dim);
  return shape;
}

// The sum over the classes of a gradient that class_split_nll_loss_backward gave, which it knows: the next
// operator of backward wants it, and would have to communicate.
struct KnownSum {
  std::weak_ptr<MeshImpl> mesh;
  c10::weak_intrusive_ptr<c10::TensorImpl> gradient{c10::intrusive_ptr<c10::TensorImpl>()};
  MemoryState state;  // of the gradient's local tensor
  std::int64_t dim;   // that of the classes
  at::Tensor sum;
};
// The latest of each mesh, so that all ranks of a mesh have one or none.
thread_local std::vector<KnownSum> known_sums;

std::optional<KnownSum> taken_from_known_sums(const std::shared_ptr<MeshImpl>& mesh) {
  std::erase_if(known_sums, [](const KnownSum& known) { return known.mesh.expired(); });
  const auto found =
      std::ranges::find_if(known_sums, [&](const KnownSum& known) { return known.mesh.lock() == mesh; });
  if (found == known_sums.end()) return std::nullopt;
  std::optional<KnownSum> known = std::move(*found);
  known_sums.erase(found);
  return known;
}

// Takes the sum of this gradient if it is known, and holds on all ranks: hooks may have written to the
// gradient in between, on some ranks.
at::Tensor take_known_sum(const at::Tensor& gradient, const ClassSplit& split) {
  const std::optional<KnownSum> known = taken_from_known_sums(split.meta->mesh);
  if (!known) return {};
  const DTensorMeta* meta = meta_of(gradient);
  const bool holds_here = known->dim == split.dim && meta != nullptr && !known->gradient.expired() &&
                          known->gradient._unsafe_get_target() == gradient.unsafeGetTensorImpl() &&
                          known->state.holds_for(meta->local);
  return split.all_say("whether the sum of a gradient still holds", holds_here) ? known->sum : at::Tensor();
}

}  // namespace

std::optional<at::Tensor> class_split_log_softmax(const at::Tensor& self, std::int64_t dim,
                                                  bool half_to_float) {
  const auto split = is_loss_parallel() ? as_class_split(self, dim) : std::nullopt;
  if (!split) return std::nullopt;
  const at::ScalarType dtype = half_to_float ? at::kFloat : self.scalar_type();
  at::Tensor x = split->meta->local;
  if (at::isReducedFloatingType(x.scalar_type())) x = x.to(at::kFloat);
  Shape one_class = x.sizes().vec();
  one_class[static_cast<std::size_t>(split->dim)] = 1;
  const bool is_empty = split->held.size == 0;
  const at::Tensor own_maximum =
      is_empty ? at::full(one_class, -std::numeric_limits<double>::infinity(), x.options())
               : x.amax(split->dim, /*keepdim=*/true);
  const at::Tensor shifted = x - split->reduced(own_maximum, "max");
  const at::Tensor sum = split->reduced(shifted.exp().sum(split->dim, /*keepdim=*/true), "sum");
  return wrap((shifted - sum.log()).to(dtype), split->meta->layout, self.sizes(),
              dense_strides(self.sizes()));
}

std::optional<at::Tensor> class_split_log_softmax_backward(const at::Tensor& gradient,
                                                           const at::Tensor& result, std::int64_t dim,
                                                           at::ScalarType input_dtype) {
  const auto split = as_class_split(result, dim);
  if (!split) return std::nullopt;
  // As LibTorch does: the type of the gradient, unless the input was of a narrower one.
  const bool was_widened = gradient.scalar_type() == at::kFloat && input_dtype == at::kHalf;
  const at::ScalarType dtype = was_widened ? at::kHalf : gradient.scalar_type();
  at::Tensor output = split->meta->local;
  at::Tensor g = wait_tensor(local_as(gradient, *split->meta->layout));
  if (at::isReducedFloatingType(output.scalar_type())) output = output.to(at::kFloat), g = g.to(at::kFloat);
  const at::Tensor known = take_known_sum(gradient, *split);
  const at::Tensor sum = known.defined() ? known.to(g.scalar_type())
                                         : split->reduced(g.sum(split->dim, /*keepdim=*/true), "sum");
  return wrap((g - output.exp() * sum).to(dtype), split->meta->layout, result.sizes(),
              dense_strides(result.sizes()));
}

std::optional<std::tuple<at::Tensor, at::Tensor>> class_split_nll_loss(
    const at::Tensor& self, const at::Tensor& target, const std::optional<at::Tensor>& weight,
    std::int64_t reduction, std::int64_t ignore_index) {
  const auto split = is_loss_parallel() ? as_class_split(self, class_dim_of(self)) : std::nullopt;
  if (!split) return std::nullopt;
  MeshImpl& mesh = *split->meta->mesh;
  const Layout* like_targets = target_layout(*split);
  const at::Tensor& x = split->meta->local;
  const Targets t = targets_of(wait_tensor(local_as(target, *like_targets)), weight, ignore_index, *split,
                               mesh, x.scalar_type());
  at::Tensor picked = at::zeros(t.index.sizes(), x.options());
  if (split->held.size > 0)
    picked = x.gather(split->dim, t.index.unsqueeze(split->dim))
                 .squeeze(split->dim)
                 .masked_fill(t.is_here.bitwise_not(), 0);
  const at::Tensor losses = split->reduced(picked, "sum").neg().mul(t.weight);

  const Layout* replicated = mesh.replicated();
  if (reduction == kNone && self.dim() > 1) {
    const Shape shape = global_target_shape(*split);
    return std::tuple(wrap(losses, like_targets, shape, dense_strides(shape)),
                      wrap(at::zeros({}, x.options()), replicated, {}, {}));
  }
  // Where the samples are split, sums over them are pending.
  Placements pending = like_targets->placements;
  for (Placement& p : pending) p = p.is_shard() ? Partial() : p;
  const Layout* summed = mesh.layout(pending);
  const at::Tensor total = wait_tensor(redistribute_local(t.weight.sum(), {}, *summed, *replicated));
  at::Tensor loss = losses.sum();
  if (reduction == kMean) loss = loss / total;
  return std::tuple(wrap(loss, summed, {}, {}), wrap(total, replicated, {}, {}));
}

std::optional<at::Tensor> class_split_nll_loss_backward(const at::Tensor& output_gradient,
                                                        const at::Tensor& self, const at::Tensor& target,
                                                        const std::optional<at::Tensor>& weight,
                                                        std::int64_t reduction, std::int64_t ignore_index,
                                                        const at::Tensor& total_weight) {
  const auto split = as_class_split(self, class_dim_of(self));
  if (!split) return std::nullopt;
  MeshImpl& mesh = *split->meta->mesh;
  const Layout* like_targets = target_layout(*split);
  const at::Tensor& x = split->meta->local;
  const Targets t = targets_of(wait_tensor(local_as(target, *like_targets)), weight, ignore_index, *split,
                               mesh, x.scalar_type());
  at::Tensor g = output_gradient.dim() > 0 ? wait_tensor(local_as(output_gradient, *like_targets))
                                           : whole(output_gradient, mesh);
  if (reduction == kMean) g = g / whole(total_weight, mesh);
  // Where all are ignored the mean is over nothing, and `g` infinite.
  const at::Tensor of_target =
      (g * t.weight).neg().masked_fill(t.counts.bitwise_not(), 0).unsqueeze(split->dim);
  at::Tensor gradient = at::zeros_like(x, at::MemoryFormat::Contiguous);
  if (split->held.size > 0)
    gradient.scatter_(split->dim, t.index.unsqueeze(split->dim),
                      of_target.masked_fill(t.is_here.bitwise_not().unsqueeze(split->dim), 0));
  const at::Tensor result = wrap(gradient, split->meta->layout, self.sizes(), dense_strides(self.sizes()));
  taken_from_known_sums(split->meta->mesh);
  known_sums.push_back({split->meta->mesh, c10::weak_intrusive_ptr<c10::TensorImpl>(result.getIntrusivePtr()),
                        MemoryState(distributed(result, "a gradient").local), split->dim, of_target});
  return result;
}

}  // namespace meshtorch::internal
