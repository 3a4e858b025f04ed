// What a gradient scaler asks of the gradients: divided by the scale, each rank its own shards, and one flag
// for all ranks that says whether a number among them is not finite.
#include <ATen/ATen.h>
#include <ATen/ops/_amp_foreach_non_finite_check_and_unscale_ops.h>

#include "decompose/families.h"
#include "meshtorch/dtensor.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// The layout of a gradient in which nothing pends: terms may be finite where their sum is not.
const Layout* summed_layout(const DTensorMeta& meta) {
  Placements placements = meta.layout->placements;
  for (Placement& p : placements) p = p.is_partial() ? Placement(Replicate()) : p;
  return meta.mesh->layout(placements);
}

// Gradients on one mesh; the scale and the flag may be plain.
void unscale_and_check(at::TensorList self, at::Tensor& found_inf, const at::Tensor& inv_scale) {
  MeshImpl& mesh = *distributed(self[0], "a gradient").mesh;
  std::vector<at::Tensor> locals;
  std::vector<at::Tensor> copies(self.size());  // of what is not divided where it lies
  Placements of_flag = mesh.replicated()->placements;
  for (std::size_t i = 0; i < self.size(); ++i) {
    const DTensorMeta& meta = distributed(self[i], "a gradient");
    const Layout* summed = summed_layout(meta);
    compare_assumed(meta.assumed);
    if (summed == meta.layout && !meta.write_back) {
      locals.push_back(meta.local);
      note_write(meta.local);
    } else {
      locals.push_back(local_under(self[i], *summed).clone());
      copies[i] = wrap(locals[i], summed, self[i].sizes(), self[i].strides());
    }
    for (std::size_t axis = 0; axis < of_flag.size(); ++axis) {
      if (!summed->placements[axis].is_replicate()) of_flag[axis] = Partial(ReduceOp::max);
    }
  }
  at::Tensor flag = at::zeros_like(is_dtensor(found_inf) ? whole_local(found_inf) : found_inf);
  at::_amp_foreach_non_finite_check_and_unscale_(locals, flag,
                                                 is_dtensor(inv_scale) ? whole_local(inv_scale) : inv_scale);
  for (std::size_t i = 0; i < self.size(); ++i) {
    if (copies[i].defined()) self[i].copy_(copies[i]);
  }
  flag = redistribute_local(flag, flag.sizes().vec(), *mesh.layout(of_flag), *mesh.replicated());
  const at::Tensor is_found = flag.gt(0);
  found_inf.masked_fill_(is_dtensor(found_inf)
                             ? wrap(is_found, mesh.replicated(), is_found.sizes(), is_found.strides())
                             : is_found,
                         1);
}

}  // namespace

void add_gradient_scale_decompositions(DecompositionTable& ops) {
  ops.add<at::_ops::_amp_foreach_non_finite_check_and_unscale_>(unscale_and_check, {.takes_plain = true});
}

}  // namespace meshtorch::internal
