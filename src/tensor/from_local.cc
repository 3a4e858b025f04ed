// Making a distributed tensor of the shards that the ranks have.
#include "tensor/from_local.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <atomic>
#include <mutex>
#include <numeric>

#include "meshtorch/collectives.h"
#include "meshtorch/error.h"
#include "redistribute/transfer.h"
#include "runtime/blocking.h"
#include "runtime/host_tensor.h"
#include "signature/tensor_signatures.h"
#include "tensor/cross_mesh.h"
#include "tensor/execute.h"
#include "tensor/meta.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

using Exchange = std::function<at::Tensor(const at::Tensor& row, const Group& group)>;

// Counted as a collective of the user's.
at::Tensor gather_rows(const at::Tensor& row, const Group& group) { return all_gather_tensor(row, 0, group); }

std::vector<int> all_axes(const MeshImpl& mesh) {
  std::vector<int> axes(mesh.shape().size());
  std::iota(axes.begin(), axes.end(), 0);
  return axes;
}

}  // namespace

// The backend is called without the dispatcher.
at::Tensor gather_rows_quietly(const at::Tensor& row, const Group& group) {
  at::Tensor input = row;
  at::Tensor output = at::empty({group.size(), row.size(1)}, row.options());
  group.process_group()
      ->getBackend(c10::DeviceType::CPU)
      ->_allgather_base(output, input, c10d::AllgatherOptions())
      ->wait();
  return output;
}

Shape shape_of_equal_shards(c10::IntArrayRef local, const Layout& layout) {
  Shape shape = local.vec();
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    const Placement& p = layout.placements[axis];
    if (p.is_shard()) shape[static_cast<std::size_t>(p.dim())] *= layout.mesh->shape()[axis];
  }
  return shape;
}

namespace {

Shape compare_shards(const Shape& local, at::ScalarType type, bool requires_grad, const Layout& layout,
                     const std::optional<Shape>& claimed, const Exchange& exchange) {
  constexpr std::size_t kMaxDims = 24;
  const MeshImpl& mesh = *layout.mesh;
  if (!mesh.coordinate()) return claimed.value_or(shape_of_equal_shards(local, layout));
  TORCH_CHECK_VALUE(local.size() <= kMaxDims, "meshtorch: from_local checks tensors of at most ", kMaxDims,
                    " dims");

  // What every rank must know of every other: dims, type, layout, whether it requires gradients, sizes.
  constexpr std::size_t kBeforeSizes = 4;
  std::vector<std::int64_t> mine(kMaxDims + kBeforeSizes);
  mine[0] = static_cast<std::int64_t>(local.size());
  mine[1] = static_cast<std::int64_t>(type);
  CallHash placements;
  add_placements(placements, layout.placements);
  mine[2] = static_cast<std::int64_t>(placements.short_form());
  mine[3] = requires_grad ? 1 : 0;
  std::copy(local.begin(), local.end(), mine.begin() + kBeforeSizes);
  const std::vector<int> axes = all_axes(mesh);
  const at::Tensor table =
      exchange(at::tensor(mine, on_host(at::kLong)).unsqueeze(0), mesh.group(axes)).contiguous();
  const auto* rows = table.const_data_ptr<std::int64_t>();
  const auto row = [&](std::size_t member) { return rows + member * mine.size(); };
  const std::vector<Shape> members = group_members(mesh.shape(), axes, coordinate_in(mesh));

  std::vector<Shape> shards;
  for (std::size_t m = 0; m < members.size(); ++m) {
    TORCH_CHECK_VALUE(row(m)[0] == row(0)[0],
                      "meshtorch: from_local: the shards have different numbers of dims\n  rank ",
                      mesh.ranks()[0], ": ", row(0)[0], "\n  rank ", mesh.ranks()[m], ": ", row(m)[0]);
    TORCH_CHECK_VALUE(row(m)[1] == row(0)[1],
                      "meshtorch: from_local: the shards have different types\n  rank ", mesh.ranks()[0],
                      ": ", c10::toString(static_cast<at::ScalarType>(row(0)[1])), "\n  rank ",
                      mesh.ranks()[m], ": ", c10::toString(static_cast<at::ScalarType>(row(m)[1])));
    TORCH_CHECK_VALUE(row(m)[2] == row(0)[2], "meshtorch: from_local: rank ", mesh.ranks()[m],
                      " passed other placements than rank ", mesh.ranks()[0]);
    TORCH_CHECK_VALUE(row(m)[3] == row(0)[3], "meshtorch: from_local: the shard of rank ",
                      mesh.ranks()[row(m)[3] == 1 ? m : 0], " requires gradients, that of rank ",
                      mesh.ranks()[row(m)[3] == 1 ? 0 : m],
                      " does not\n  do: call requires_grad_() on all ranks or on none");
    shards.emplace_back(row(m) + kBeforeSizes, row(m) + kBeforeSizes + row(m)[0]);
  }
  // The size of a split dim is the sum over the ranks that split it, with coordinate 0 on the other axes.
  Shape shape(shards[0].size(), 0);
  for (std::size_t dim = 0; dim < shape.size(); ++dim) {
    for (std::size_t m = 0; m < members.size(); ++m) {
      bool counts = true;
      for (std::size_t axis = 0; axis < axes.size(); ++axis) {
        counts &= members[m][axis] == 0 || layout.placements[axis].is_shard(static_cast<std::int64_t>(dim));
      }
      if (counts) shape[dim] += shards[m][dim];
    }
  }
  if (claimed) shape = *claimed;
  for (std::size_t m = 0; m < members.size(); ++m) {
    const Shape expected = local_shape(shape, layout.placements, mesh.shape(), members[m]);
    TORCH_CHECK_VALUE(shards[m] == expected, "meshtorch: from_local: the shard of rank ", mesh.ranks()[m],
                      " does not fit\n  it is ", c10::IntArrayRef(shards[m]), ", but of ",
                      c10::IntArrayRef(shape), " under ", to_string(layout.placements), " it would be ",
                      c10::IntArrayRef(expected),
                      "\n  do: split as torch::chunk does, or give the shape that the shards come from");
  }
  return shape;
}

}  // namespace

Shape shape_of_checked_shards(const at::Tensor& local, const Layout& layout,
                              const std::optional<Shape>& claimed) {
  try {
    return compare_shards(local.sizes().vec(), local.scalar_type(), local.requires_grad(), layout, claimed,
                          gather_rows);
  } catch (const DisagreementError& error) {
    // What the check is for, found before it: the ranks take their tensors for different things.
    C10_THROW_ERROR(ValueError, error.what_without_backtrace());
  }
}

// That of one tensor, or of several together.
struct AssumedShape {
  std::vector<AssumedShapePtr> parts = {};
  Shape local = {};
  at::ScalarType type = {};
  const Layout* layout = nullptr;
  std::shared_ptr<MeshImpl> mesh = nullptr;  // keeps the layout alive
  Shape shape = {};
  std::atomic<bool> is_compared = false;
  std::mutex comparing = {};
};

AssumedShapePtr assume(const at::Tensor& local, const Layout& layout, const Shape& shape) {
  if (!layout.mesh->backend().has_peers) return nullptr;  // there are no other ranks
  auto assumed = std::make_shared<AssumedShape>();
  assumed->local = local.sizes().vec();
  assumed->type = local.scalar_type();
  assumed->layout = &layout;
  assumed->mesh = layout.mesh->shared_from_this();
  assumed->shape = shape;
  return assumed;
}

AssumedShapePtr assume_both(const AssumedShapePtr& a, const AssumedShapePtr& b) {
  const bool has_a = a && !a->is_compared;
  const bool has_b = b && !b->is_compared && a != b;
  if (!has_a) return has_b ? b : nullptr;
  if (!has_b) return a;
  auto both = std::make_shared<AssumedShape>();
  both->parts = {a, b};
  return both;
}

void compare_assumed(const AssumedShapePtr& assumed) {
  if (!assumed || assumed->is_compared) return;
  const auto lock = lock_across_ranks(assumed->comparing);
  if (assumed->is_compared) return;
  for (const AssumedShapePtr& part : assumed->parts) compare_assumed(part);
  if (assumed->layout != nullptr)
    compare_shards(assumed->local, assumed->type, /*requires_grad=*/false, *assumed->layout, assumed->shape,
                   gather_rows_quietly);
  assumed->is_compared = true;
}

at::Tensor local_under(const at::Tensor& tensor, const Layout& to) {
  refresh(distributed(tensor, "a redistribution"), Reader::all_ranks);
  return fresh_local_under(tensor, to);
}

at::Tensor fresh_local_under(const at::Tensor& tensor, const Layout& to) {
  const DTensorMeta& meta = distributed(tensor, "a redistribution");
  const Shape shape = tensor.sizes().vec();
  if (meta.replica) meta.replica->note_read();
  // Not asked of the plan, which depends on the shape, and the shape may differ between ranks.
  if (meta.layout != &to) compare_assumed(meta.assumed);
  if (meta.mesh.get() != to.mesh && meta.assumed) compare_shapes(shape, *meta.layout, to);
  // Ranks of two meshes may have made different numbers of tensors on them.
  const TensorOrigin origin = meta.mesh.get() == to.mesh ? meta.origin : TensorOrigin();
  const MovedTensor moved(origin);
  return redistribute_local(meta.local, shape, *meta.layout, to);
}

at::Tensor local_as(const at::Tensor& tensor, const Layout& to) {
  if (meta_of(tensor) != nullptr) return local_under(tensor, to);
  return redistribute_local(tensor, tensor.sizes().vec(), *to.mesh->replicated(), to);
}

at::Tensor whole_local(const at::Tensor& tensor) {
  return local_under(tensor, *distributed(tensor, "a redistribution").mesh->replicated());
}

}  // namespace meshtorch::internal
