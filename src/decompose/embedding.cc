// The gradient of a look-up table that is split by rows: each rank makes its own rows only.
#include <ATen/ATen.h>
#include <ATen/ops/embedding_dense_backward_ops.h>
#include <torch/csrc/autograd/functions/accumulate_grad.h>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "meshtorch/collectives.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// How the table lies whose gradient the running node of backward makes, through casts and other functions of
// one tensor; null if that cannot be known.
const Layout* layout_of_table(std::int64_t rows, std::int64_t width) {
  constexpr int kLongestWay = 8;
  const auto running = torch::autograd::get_current_node();
  const torch::autograd::Node* node = running.get();
  for (int step = 0; node != nullptr && step < kLongestWay; ++step) {
    if (const auto* leaf = dynamic_cast<const torch::autograd::AccumulateGrad*>(node)) {
      const at::Tensor& table = leaf->variable;
      const DTensorMeta* meta = table.defined() ? meta_of(table) : nullptr;
      return meta != nullptr && table.sizes() == at::IntArrayRef({rows, width}) ? meta->layout : nullptr;
    }
    if (node->num_outputs() != 1) return nullptr;
    node = node->next_edge(0).function.get();
  }
  return nullptr;
}

bool is_split_by_rows(const Layout& layout) {
  bool is_split = false;
  for (const Placement& p : layout.placements) {
    if (!p.is_shard(0)) continue;
    if (p.split_factor() > 1) return false;  // a rank would hold rows here and there
    is_split = true;
  }
  return is_split;
}

// How the gradient of the result and the indices have to lie, and how the rows lie then.
struct RowLayouts {
  Placements gradient, indices, rows;

  // Along the axes that split the table's rows, each rank needs all that was looked up; the others may keep
  // what they have.
  RowLayouts(const Placements& table, const Placements& given, std::int64_t width_dim)
      : gradient(given), indices(given.size()), rows(given.size()) {
    for (std::size_t axis = 0; axis < given.size(); ++axis) {
      Placement& g = gradient[axis];
      if (table[axis].is_shard(0)) {
        g = Replicate();
        rows[axis] = table[axis];
      } else if (table[axis].is_shard(1)) {
        g = StridedShard(width_dim, table[axis].split_factor());
        rows[axis] = table[axis];
      } else if (g.is_shard(width_dim)) {
        rows[axis] = StridedShard(1, g.split_factor());
      } else if (g.is_shard()) {
        indices[axis] = g;
        rows[axis] = Partial();
      } else if (g.is_partial() && (g.reduce_op() == ReduceOp::sum || g.reduce_op() == ReduceOp::avg)) {
        rows[axis] = g;
      } else {
        g = Replicate();
      }
    }
  }
};

at::Tensor backward_of_table(const at::Tensor& grad_output, const at::Tensor& indices,
                             c10::SymInt num_weights, c10::SymInt padding_idx, bool scale_grad_by_freq) {
  const DTensorMeta* gradient = meta_of(grad_output);
  const std::int64_t count = num_weights.expect_int();
  const std::int64_t width_dim = grad_output.dim() - 1;
  const std::int64_t width = grad_output.size(width_dim);
  const Layout* table = gradient == nullptr ? nullptr : layout_of_table(count, width);
  if (table == nullptr || table->mesh != gradient->mesh.get() || !is_split_by_rows(*table) ||
      scale_grad_by_freq) {
    return by_rule<at::_ops::embedding_dense_backward>(grad_output, indices, num_weights, padding_idx,
                                                       scale_grad_by_freq);
  }
  MeshImpl& mesh = *gradient->mesh;
  const RowLayouts layouts(table->placements, gradient->layout->placements, width_dim);
  const at::Tensor local_gradient = wait_tensor(local_as(grad_output, *mesh.layout(layouts.gradient)));
  const at::Tensor local_indices = wait_tensor(local_as(indices, *mesh.layout(layouts.indices)));
  const auto held = held_ranges(count, 0, layouts.rows, mesh.shape(), coordinate_in(mesh));
  const Range mine = held.empty() ? Range{} : held[0];
  const at::Tensor shifted = local_indices - mine.begin;
  at::Tensor elsewhere = shifted.lt(0).bitwise_or_(shifted.ge(mine.size));
  const std::int64_t padding = padding_idx.expect_int();
  if (padding >= 0) elsewhere.bitwise_or_(local_indices.eq(padding));
  // One row more, as padding, takes what belongs to others.
  const at::Tensor rows =
      at::embedding_dense_backward(local_gradient, shifted.masked_fill(elsewhere, mine.size), mine.size + 1,
                                   /*padding_idx=*/mine.size, /*scale_grad_by_freq=*/false);
  const Shape shape{count, width};
  return wrap(rows.narrow(0, 0, mine.size), mesh.layout(layouts.rows), shape, dense_strides(shape));
}

}  // namespace

void add_embedding_decompositions(DecompositionTable& ops) {
  ops.add<at::_ops::embedding_dense_backward>(&backward_of_table, {.asks_rule = true});
}

}  // namespace meshtorch::internal
