// Redistribution as a differentiable function of distributed tensors.
#include "tensor/redistribute.h"

#include <ATen/ATen.h>

#include "backends/pending.h"
#include "runtime/differentiable.h"
#include "runtime/hidden_from_modes.h"
#include "runtime/transforms.h"
#include "tensor/from_local.h"
#include "tensor/log_layout.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

at::Tensor moved(const at::Tensor& tensor, const Layout* to, const RedistributeOptions& options) {
  const OutsideTransforms ordinary;
  const HiddenFromModes hidden;
  const DTensorMeta& meta = distributed(tensor, "redistribute");
  at::Tensor result = local_under(options.forward_dtype ? tensor.to(*options.forward_dtype) : tensor, *to);
  if (!options.async_op) wait_pending(result);
  // The result is a tensor of its own: writing to it must not change the source.
  if (!is_pending_tensor(result) && result.is_alias_of(meta.local)) {
    result = to == meta.layout ? result.alias() : result.clone(at::MemoryFormat::Contiguous);
  }
  at::Tensor made = wrap(std::move(result), to, tensor.sizes(), tensor.strides());
  // Ranks of two meshes may have made different numbers of tensors on them.
  distributed(made, "redistribute").origin =
      meta.mesh.get() == to->mesh ? meta.origin : origin_of_made("redistribute", *to, made.scalar_type());
  return made;
}

// Where the gradient of a tensor goes: where the tensor was, also if that is where it stayed. Of a pending
// one it is whole, or pending if it came so.
const Layout* layout_of_gradient(const Layout& tensor, const Layout& gradient) {
  Placements placements = gradient_placements(tensor.placements);
  if (gradient.mesh == tensor.mesh) {
    for (std::size_t axis = 0; axis < placements.size(); ++axis) {
      if (tensor.placements[axis].is_partial() && gradient.placements[axis].is_partial())
        placements[axis] = gradient.placements[axis];
    }
  }
  return tensor.mesh->layout(placements);
}

}  // namespace

Placements gradient_placements(const Placements& placements) {
  Placements gradient = placements;
  for (Placement& p : gradient) {
    if (p.is_partial()) p = Replicate();
  }
  return gradient;
}

at::Tensor redistribute_tensor(const at::Tensor& tensor, const Layout* to,
                               const RedistributeOptions& options) {
  const Layout* from = distributed(tensor, "redistribute").layout;
  if (!is_recorded(tensor)) {
    const at::NoGradGuard no_grad;
    return moved(tensor, to, options);
  }
  const at::ScalarType dtype = tensor.scalar_type();
  return differentiable(
      "RedistributeBackward", tensor, [=](const at::Tensor& x) { return moved(x, to, options); },
      [=, keeps_alive = from->mesh->shared_from_this()](const at::Tensor& gradient) {
        const Layout* back = layout_of_gradient(*from, *distributed(gradient, "redistribute").layout);
        const at::Tensor result = redistribute_tensor(
            gradient, back, {.async_op = options.async_op, .forward_dtype = options.backward_dtype});
        return result.scalar_type() == dtype ? result : result.to(dtype);
      });
}

}  // namespace meshtorch::internal
