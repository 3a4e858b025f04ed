// Carries out a redistribution plan.
#include "tensor/execute.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "kernels/reduce.h"
#include "mesh/mesh_impl.h"
#include "redistribute/plan_cache.h"
#include "runtime/hidden_from_modes.h"
#include "tensor/check_replicas.h"
#include "tensor/cross_mesh.h"
#include "tensor/meta.h"
#include "tensor/move_cache.h"
#include "tensor/move_record.h"
#include "transport/transport.h"

namespace meshtorch::internal {
namespace {

// One step on this rank.
class StepRun {
 public:
  StepRun(const PreparedStep& prepared, const MeshImpl& mesh)
      : prepared_(prepared), step_(prepared.step), mesh_(mesh) {}

  at::Tensor run(const at::Tensor& local) const {
    const bool is_outside = !mesh_.coordinate().has_value();
    if (is_outside && is_collective(step_.kind)) return at::zeros(prepared_.result, local.options());
    if (divisor_of(step_, mesh_.shape()) > 1) check_reducible(c10d::ReduceOp::AVG, {local});
    switch (step_.kind) {
      case Step::Kind::all_gather:
        return TransportOf(group(), local)->gather_boxes(prepared_, local);
      case Step::Kind::all_to_all:
        return TransportOf(group(), local)->exchange_boxes(prepared_, local);
      case Step::Kind::all_reduce:
        return averaged(TransportOf(group(), local)->all_reduce(local, step_.op));
      case Step::Kind::reduce_scatter:
        return averaged(TransportOf(group(), local)->reduce_boxes(prepared_, local));
      case Step::Kind::slice:
        return slice(local);
      case Step::Kind::to_partial:
        return to_partial(local);
    }
    return local;
  }

 private:
  Group group() const { return mesh_.group(step_.axes); }

  static at::Tensor box(const at::Tensor& t, const std::vector<Range>& ranges) {
    at::Tensor part = t;
    for (std::size_t dim = 0; dim < ranges.size(); ++dim) {
      const auto d = static_cast<std::int64_t>(dim);
      if (ranges[dim].size != part.size(d)) part = part.narrow(d, ranges[dim].begin, ranges[dim].size);
    }
    return part;
  }

  // The sum that was reduced, divided where some axes average.
  at::Tensor averaged(const at::Tensor& reduced) const {
    const std::int64_t divisor = divisor_of(step_, mesh_.shape());
    return divisor == 1 ? reduced : reduced.div(divisor);
  }

  at::Tensor slice(const at::Tensor& local) const {
    const std::vector<Piece>& mine = prepared_.received[prepared_.me];
    if (mine.size() == 1) return box(local, mine[0].source);
    at::Tensor result = at::empty(prepared_.result, local.options());
    for (const Piece& piece : mine) box(result, piece.target).copy_(box(local, piece.source));
    return result;
  }

  at::Tensor to_partial(const at::Tensor& local) const {
    if (keeps_value(step_.op, prepared_.is_first)) return local;
    return step_.op == ReduceOp::product ? at::ones_like(local) : at::zeros_like(local);
  }

  const PreparedStep& prepared_;
  const Step& step_;
  const MeshImpl& mesh_;
};

void check_shard(const at::Tensor& local, const Shape& expected, const Shape& shape, const Layout& layout) {
  TORCH_CHECK_VALUE(
      local.sizes() == c10::IntArrayRef(expected),
      "meshtorch: the local tensor is not the shard that its layout says\n  local: ", local.sizes(),
      "\n  expected: ", c10::IntArrayRef(expected), " of ", c10::IntArrayRef(shape), " under ",
      to_string(layout.placements), "\n  do: give from_local the global shape, or set run_check");
}

}  // namespace

std::shared_ptr<const Plan> plan_between(const Shape& shape, std::int64_t item_size, const Layout& from,
                                         const Layout& to) {
  return cached_plan(
      {shape, item_size, from.mesh->shape(), from.placements, to.placements, from.mesh->axis_costs()});
}

at::Tensor redistribute_local(const at::Tensor& local, const Shape& shape, const Layout& from,
                              const Layout& to) {
  if (&from == &to) return local;
  const HiddenFromModes hidden;
  if (from.mesh != to.mesh) {
    check_shard(local, local_shape_of(shape, from), shape, from);
    return cross_local(local, shape, from, to);
  }
  const auto move =
      moves_of(*from.mesh).get(shape, static_cast<std::int64_t>(local.element_size()), from, to);
  check_shard(local, move->local, shape, from);
  record_move(local, shape, from, to, *move->plan);
  if (replicas_are_checked()) check_equal_replicas(local, from, "a tensor that is redistributed");
  at::Tensor current = local;
  for (const PreparedStep& step : move->steps) current = StepRun(step, *from.mesh).run(current);
  return current;
}

}  // namespace meshtorch::internal
