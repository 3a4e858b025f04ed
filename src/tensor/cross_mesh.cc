// Carries a tensor from one mesh to another.
#include "tensor/cross_mesh.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "mesh/mesh_impl.h"
#include "meshtorch/collectives.h"
#include "meshtorch/device_mesh.h"
#include "redistribute/crossing.h"
#include "runtime/host_tensor.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"
#include "tensor/move_record.h"

namespace meshtorch::internal {
namespace {

CrossingSide side_of(const Layout& layout) {
  return {layout.mesh->shape(), layout.mesh->ranks(), layout.placements};
}

std::string mesh_text(const MeshImpl& mesh) {
  return DeviceMesh(const_cast<MeshImpl&>(mesh).shared_from_this()).to_string();
}

// The world ranks of a group that was made elsewhere are not known.
bool knows_its_ranks(const MeshImpl& mesh) {
  return MeshImpl::get(mesh.device_type(), mesh.ranks(), mesh.shape(), mesh.names()).get() == &mesh;
}

void check_meshes(const MeshImpl& from, const MeshImpl& to) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      from.device_type() == to.device_type(),
      "meshtorch: redistribute to a mesh of other devices\n  from: ", mesh_text(from),
      "\n  to: ", mesh_text(to),
      "\n  do: redistribute on one device type, then call to(device) on the local tensors");
  for (const MeshImpl* mesh : {&from, &to}) {
    TORCH_CHECK_NOT_IMPLEMENTED(
        knows_its_ranks(*mesh),
        "meshtorch: redistribute between meshes needs their ranks of the world, and a group that was made "
        "elsewhere does not tell them\n  mesh: ",
        mesh_text(*mesh), "\n  do: make the mesh from ranks, with DeviceMesh(device_type, ranks)");
  }
}

AxisCost worst_cost(const Layout& from, const Layout& to) {
  AxisCost worst{.latency_s = 0, .seconds_per_byte = 0};
  for (const Layout* layout : {&from, &to}) {
    for (const AxisCost& cost : layout->mesh->axis_costs()) {
      worst.latency_s = std::max(worst.latency_s, cost.latency_s);
      worst.seconds_per_byte = std::max(worst.seconds_per_byte, cost.seconds_per_byte);
    }
  }
  return worst;
}

std::int64_t largest_local(const Shape& shape, const Layout& layout) {
  return c10::multiply_integers(
      local_shape(shape, layout.placements, layout.mesh->shape(), Shape(layout.mesh->shape().size(), 0)));
}

// The exchange as a step of a plan: its axes are those of no mesh.
Step exchange_step(const Shape& shape, std::int64_t item_size, const Layout& from, const Layout& to) {
  const AxisCost cost = worst_cost(from, to);
  Step step{.kind = Step::Kind::all_to_all,
            .axes = {},
            .before = from.placements,
            .after = to.placements,
            .bytes_sent = Crossing(shape, side_of(from), side_of(to)).most_sent() * item_size,
            .peak_bytes = (largest_local(shape, from) + largest_local(shape, to)) * item_size};
  if (step.bytes_sent == 0) {
    step.kind = Step::Kind::slice;
    return step;
  }
  step.seconds = cost.latency_s + static_cast<double>(step.bytes_sent) * cost.seconds_per_byte;
  return step;
}

// The layouts without pending axes that `from` may be reduced to: whole or split, each axis.
std::vector<const Layout*> middles_of(const Shape& shape, const Layout& from) {
  std::vector<Placements> found{{}};
  for (const Placement& p : from.placements) {
    std::vector<Placement> choices{p};
    if (p.is_partial()) {
      choices = {Replicate()};
      for (std::size_t dim = 0; dim < shape.size(); ++dim)
        choices.push_back(Shard(static_cast<std::int64_t>(dim)));
    }
    std::vector<Placements> longer;
    for (const Placements& so_far : found) {
      for (const Placement& choice : choices) {
        longer.push_back(so_far);
        longer.back().push_back(choice);
      }
    }
    found = std::move(longer);
  }
  std::vector<const Layout*> layouts;
  for (const Placements& placements : found) layouts.push_back(from.mesh->layout(placements));
  return layouts;
}

struct Way {
  const Layout* middle = nullptr;
  std::shared_ptr<const Plan> reduction;
  Step exchange;
  double seconds() const { return reduction->seconds + exchange.seconds; }
};

Way cheapest_way(const Shape& shape, std::int64_t item_size, const Layout& from, const Layout& to) {
  Way best;
  for (const Layout* middle : middles_of(shape, from)) {
    Way way{middle, plan_between(shape, item_size, from, *middle),
            exchange_step(shape, item_size, *middle, to)};
    if (best.middle == nullptr || way.seconds() < best.seconds()) best = std::move(way);
  }
  return best;
}

at::Tensor box_of(const at::Tensor& t, const std::vector<Range>& ranges) {
  at::Tensor part = t;
  for (std::size_t dim = 0; dim < ranges.size(); ++dim)
    part = part.narrow(static_cast<std::int64_t>(dim), ranges[dim].begin, ranges[dim].size);
  return part;
}

at::Tensor new_filled(c10::IntArrayRef sizes, const at::TensorOptions& options, ReduceOp op) {
  return op == ReduceOp::product ? at::ones(sizes, options) : at::zeros(sizes, options);
}

// This rank's part in the exchange.
class CrossingRun {
 public:
  CrossingRun(const Shape& shape, const Layout& from, const Layout& to)
      : crossing_(shape, side_of(from), side_of(to)),
        self_(from.mesh->world_rank()),
        target_shape_(local_shape_of(shape, to)) {}

  at::Tensor run(const at::Tensor& local, bool travels) const {
    at::Tensor result = at::empty(target_shape_, local.options());
    if (const auto op = crossing_.filled_with(self_))
      result = new_filled(target_shape_, local.options(), *op);
    for (const Piece& own : crossing_.pieces(self_, self_))
      box_of(result, own.target).copy_(box_of(local, own.source));
    if (travels) exchange(local, result);
    return result;
  }

 private:
  void exchange(const at::Tensor& local, at::Tensor& result) const {
    std::vector<at::Tensor> sent{at::empty({0}, local.options())};
    Splits send_counts;
    Splits receive_counts;
    std::vector<std::vector<Piece>> received;
    for (const std::int64_t peer : crossing_.ranks()) {
      const bool is_self = peer == self_;
      const auto outgoing = is_self ? std::vector<Piece>{} : crossing_.pieces(self_, peer);
      for (const Piece& piece : outgoing) sent.push_back(box_of(local, piece.source).reshape({-1}));
      send_counts.push_back(element_count(outgoing));
      received.push_back(is_self ? std::vector<Piece>{} : crossing_.pieces(peer, self_));
      receive_counts.push_back(element_count(received.back()));
    }
    const at::Tensor packed =
        all_to_all_single(at::cat(sent), receive_counts, send_counts, Group(crossing_.ranks()));
    std::int64_t offset = 0;
    for (const auto& pieces : received) {
      for (const Piece& piece : pieces) {
        at::Tensor target = box_of(result, piece.target);
        target.copy_(packed.narrow(0, offset, target.numel()).view(target.sizes()));
        offset += target.numel();
      }
    }
  }

  const Crossing crossing_;
  const std::int64_t self_;
  const Shape target_shape_;
};

}  // namespace

Plan plan_between_meshes(const Shape& shape, std::int64_t item_size, const Layout& from, const Layout& to) {
  check_meshes(*from.mesh, *to.mesh);
  const Way way = cheapest_way(shape, item_size, from, to);
  Plan plan = *way.reduction;
  plan.steps.push_back(way.exchange);
  plan.seconds += way.exchange.seconds;
  plan.bytes_sent += way.exchange.bytes_sent;
  plan.peak_bytes = std::max(plan.peak_bytes, way.exchange.peak_bytes);
  return plan;
}

at::Tensor cross_local(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to) {
  check_meshes(*from.mesh, *to.mesh);
  const auto item_size = static_cast<std::int64_t>(local.element_size());
  const Way way = cheapest_way(shape, item_size, from, to);
  at::Tensor held = redistribute_local(local, shape, from, *way.middle);
  if (!from.mesh->coordinate() && !to.mesh->coordinate())
    return at::zeros(local_shape_of(shape, to), local.options());
  Plan exchange;
  exchange.steps.push_back(way.exchange);
  exchange.seconds = way.exchange.seconds;
  exchange.bytes_sent = way.exchange.bytes_sent;
  record_move(held, shape, *way.middle, to, exchange);
  at::Tensor result = CrossingRun(shape, *way.middle, to).run(held, way.exchange.bytes_sent > 0);
  return to.mesh->coordinate() ? result : at::zeros_like(result);
}

void compare_shapes(const Shape& shape, const Layout& from, const Layout& to) {
  check_meshes(*from.mesh, *to.mesh);
  if (!from.mesh->coordinate() && !to.mesh->coordinate()) return;
  constexpr std::size_t kMaxDims = 24;
  Shape row(kMaxDims + 1, 0);
  row[0] = static_cast<std::int64_t>(shape.size());
  std::copy_n(shape.begin(), std::min(shape.size(), kMaxDims), row.begin() + 1);
  const Crossing crossing({}, side_of(from), side_of(to));
  const at::Tensor table =
      gather_rows_quietly(at::tensor(row, on_host(at::kLong)).unsqueeze(0), Group(crossing.ranks()));
  for (std::int64_t r = 1; r < table.size(0); ++r) {
    const auto sizes_at = [&](std::int64_t member) {
      return table[member].narrow(0, 1, table[member][0].item<std::int64_t>());
    };
    TORCH_CHECK_VALUE(
        at::equal(table[0], table[r]),
        "meshtorch: redistribute to another mesh: ranks see tensors of different shapes\n  rank ",
        crossing.ranks()[0], ": ",
        c10::IntArrayRef(sizes_at(0).const_data_ptr<std::int64_t>(),
                         static_cast<std::size_t>(sizes_at(0).numel())),
        "\n  rank ", crossing.ranks()[static_cast<std::size_t>(r)], ": ",
        c10::IntArrayRef(sizes_at(r).const_data_ptr<std::int64_t>(),
                         static_cast<std::size_t>(sizes_at(r).numel())),
        "\n  do: give from_local the global shape on every rank, also on those outside its mesh");
  }
}

}  // namespace meshtorch::internal
