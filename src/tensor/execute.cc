// Carries out a redistribution plan: boxes are moved in memory that ranks share, else packed, sent by a
// collective and unpacked.
#include "tensor/execute.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "comm/collectives_in_memory.h"
#include "comm/hidden_from_modes.h"
#include "comm/reduce.h"
#include "mesh/mesh_impl.h"
#include "meshtorch/collectives.h"
#include "redistribute/plan_cache.h"
#include "tensor/boxes_in_memory.h"
#include "tensor/check_replicas.h"
#include "tensor/cross_mesh.h"
#include "tensor/meta.h"
#include "tensor/move_cache.h"
#include "tensor/move_record.h"

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
        return all_gather(local);
      case Step::Kind::all_to_all:
        return exchange(local);
      case Step::Kind::all_reduce:
        return averaged(all_reduce(local, step_.op, group()));
      case Step::Kind::reduce_scatter:
        return reduce_scatter(local);
      case Step::Kind::slice:
        return slice(local);
      case Step::Kind::to_partial:
        return to_partial(local);
    }
    return local;
  }

 private:
  using Pieces = std::vector<Piece>;

  Group group() const { return mesh_.group(step_.axes); }

  static at::Tensor box(const at::Tensor& t, const std::vector<Range>& ranges) {
    at::Tensor part = t;
    for (std::size_t dim = 0; dim < ranges.size(); ++dim) {
      const auto d = static_cast<std::int64_t>(dim);
      if (ranges[dim].size != part.size(d)) part = part.narrow(d, ranges[dim].begin, ranges[dim].size);
    }
    return part;
  }

  // The boxes of `t` that `parts` name as sources, one after the other in one dim.
  static at::Tensor pack(const at::Tensor& t, const Pieces& parts) {
    if (parts.size() == 1) return box(t, parts[0].source).reshape({-1});
    std::vector<at::Tensor> flat;
    for (const Piece& piece : parts) flat.push_back(box(t, piece.source).reshape({-1}));
    return flat.empty() ? t.reshape({-1}).narrow(0, 0, 0) : at::cat(flat);
  }

  static void unpack(const at::Tensor& packed, const Pieces& parts, const at::Tensor& into) {
    std::int64_t offset = 0;
    for (const Piece& piece : parts) {
      const at::Tensor target = box(into, piece.target);
      target.copy_(packed.narrow(0, offset, target.numel()).view(target.sizes()));
      offset += target.numel();
    }
  }

  at::Tensor all_gather(const at::Tensor& local) const {
    if (auto* memory = memory_for(group(), local)) return gather_boxes(*memory, group(), prepared_, local);
    if (const std::int64_t dim = prepared_.concatenated_dim; dim >= 0) {
      Splits sizes;
      for (const Shape& part : prepared_.before) sizes.push_back(part[static_cast<std::size_t>(dim)]);
      return all_gather_tensor(local, dim, group(), sizes);
    }
    Splits counts;
    for (const Shape& part : prepared_.before)
      counts.push_back(std::accumulate(part.begin(), part.end(), std::int64_t{1}, std::multiplies<>()));
    const at::Tensor packed = all_gather_tensor(local.reshape({-1}), 0, group(), counts);
    at::Tensor whole = at::empty(prepared_.result, local.options());
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < counts.size(); ++i) {
      const at::Tensor part = packed.narrow(0, offset, counts[i]).view(prepared_.before[i]);
      for (const Piece& piece : prepared_.received[i])
        box(whole, piece.target).copy_(box(part, piece.source));
      offset += counts[i];
    }
    return whole;
  }

  at::Tensor exchange(const at::Tensor& local) const {
    if (auto* memory = memory_for(group(), local)) return exchange_boxes(*memory, group(), prepared_, local);
    std::vector<at::Tensor> sent;
    Splits send_counts;
    Splits receive_counts;
    for (std::size_t i = 0; i < prepared_.sent.size(); ++i) {
      sent.push_back(pack(local, prepared_.sent[i]));
      send_counts.push_back(sent.back().numel());
      receive_counts.push_back(element_count(prepared_.received[i]));
    }
    const at::Tensor packed = all_to_all_single(at::cat(sent), receive_counts, send_counts, group());
    at::Tensor result = at::empty(prepared_.result, local.options());
    std::int64_t offset = 0;
    for (std::size_t i = 0; i < receive_counts.size(); ++i) {
      unpack(packed.narrow(0, offset, receive_counts[i]), prepared_.received[i], result);
      offset += receive_counts[i];
    }
    return result;
  }

  // The sum that was reduced, divided where some axes average.
  at::Tensor averaged(const at::Tensor& reduced) const {
    const std::int64_t divisor = divisor_of(step_, mesh_.shape());
    return divisor == 1 ? reduced : reduced.div(divisor);
  }

  at::Tensor reduce_scatter(const at::Tensor& local) const {
    if (auto* memory = memory_for(group(), local))
      return averaged(reduce_boxes(*memory, group(), prepared_, local));
    std::vector<at::Tensor> terms;
    std::int64_t largest = 0;
    for (const Pieces& to_member : prepared_.sent) {
      terms.push_back(pack(local, to_member));
      largest = std::max(largest, terms.back().numel());
    }
    for (at::Tensor& term : terms) {
      if (term.numel() < largest) term = at::cat({term, term.new_zeros({largest - term.numel()})});
    }
    const at::Tensor packed = averaged(reduce_scatter_tensor(at::cat(terms), step_.op, 0, group()));
    const Pieces& mine = prepared_.received[prepared_.me];
    if (mine.size() == 1) return packed.narrow(0, 0, element_count(mine)).view(prepared_.result);
    at::Tensor result = at::empty(prepared_.result, local.options());
    unpack(packed, mine, result);
    return result;
  }

  at::Tensor slice(const at::Tensor& local) const {
    const Pieces& mine = prepared_.received[prepared_.me];
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
