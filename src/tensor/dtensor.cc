// The handle of a distributed tensor.
#include "meshtorch/dtensor.h"

#include <ATen/ATen.h>

#include <ostream>

#include "backends/pending.h"
#include "meshtorch/between_meshes.h"
#include "meshtorch/collectives.h"
#include "runtime/differentiable.h"
#include "runtime/hidden_from_modes.h"
#include "runtime/transforms.h"
#include "tensor/check_dense.h"
#include "tensor/cross_mesh.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/log_layout.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"
#include "tensor/redistribute.h"
#include "tensor/replica_sample.h"

namespace meshtorch {
using namespace internal;
namespace {

// This rank's shard, as others may see it: nothing on a rank outside the mesh, and zero, of a tensor without
// dims, which always has an element.
at::Tensor shard_of(const at::Tensor& tensor) {
  const OutsideTransforms ordinary;
  const HiddenFromModes hidden;
  const DTensorMeta& meta = distributed(tensor, "to_local");
  refresh(meta, Reader::this_rank);
  note_exposed(meta.local);
  if (!meta.mesh->coordinate())
    return tensor.dim() == 0 ? at::zeros({}, meta.local.options()) : at::empty({0}, meta.local.options());
  return is_pending_tensor(meta.local) ? meta.local : meta.local.alias();
}

// Whether ranks have different shards, by what every rank knows: a rank whose own shard is empty must come to
// the comparison that the others make.
bool is_split(const Layout& layout) {
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (layout.placements[axis].is_shard() && layout.mesh->shape()[axis] > 1) return true;
  }
  return false;
}

// The tensor of the first rank along every axis that has copies, on all of them.
at::Tensor copies_of_first(at::Tensor local, const Layout& layout) {
  if (!layout.mesh->coordinate() || local.is_meta()) return local;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (!layout.placements[axis].is_replicate() || layout.mesh->shape()[axis] == 1) continue;
    local = wait_tensor(broadcast(local, 0, layout.mesh->group({static_cast<int>(axis)})));
  }
  return local;
}

// The gradient, laid out as the tensor is: it may become the .grad of that.
at::Tensor dense_like(const at::Tensor& gradient, const Shape& stride) {
  if (stride.size() != gradient.sizes().size()) return gradient;  // on a rank outside the mesh
  const Shape strides = dense_strides_like(gradient.sizes(), stride);
  if (gradient.strides() == c10::IntArrayRef(strides)) return gradient;
  return at::empty_strided(gradient.sizes(), strides, gradient.options()).copy_(gradient);
}

// This rank's part of a gradient. Along an axis on which it shall be a pending sum and is none, all ranks
// have equal terms.
at::Tensor local_gradient(const at::Tensor& gradient, const Layout& wanted) {
  const Layout& its = *distributed(gradient, "redistribute").layout;
  Placements placements = wanted.placements;
  std::int64_t terms = 1;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (!placements[axis].is_partial() || (its.mesh == wanted.mesh && its.placements[axis].is_partial()))
      continue;
    if (placements[axis].is_partial(ReduceOp::sum)) terms *= wanted.mesh->shape()[axis];
    placements[axis] = Replicate();
  }
  const Layout* to = wanted.mesh->layout(placements);
  const at::Tensor mine = DTensor(&its == to ? gradient : redistribute_tensor(gradient, to, {})).to_local();
  return terms == 1 ? mine : mine / terms;
}

}  // namespace

bool is_dtensor(const at::Tensor& tensor) { return tensor.defined() && meta_of(tensor) != nullptr; }

DTensor::DTensor(const at::Tensor& tensor) : at::Tensor(tensor) { distributed(tensor, "DTensor(tensor)"); }

DTensor internal::made_of_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                                const FromLocalOptions& options, ReplicaValues values) {
  const HiddenFromModes hidden;
  TORCH_CHECK_VALUE(!is_dtensor(local),
                    "meshtorch: from_local was given a distributed tensor\n  do: use redistribute");
  check_dense(local, "from_local");
  const OutsideTransforms ordinary;
  TORCH_CHECK_VALUE(options.shape.has_value() || !options.stride.has_value(),
                    "meshtorch: from_local with a stride needs the shape too");
  MeshImpl& impl = impl_of(mesh);
  // A rank outside the mesh may give anything if it says the shape: it holds a stand-in.
  const bool is_outside = !impl.coordinate() && options.shape.has_value();
  const std::int64_t dims = is_outside ? static_cast<std::int64_t>(options.shape->size()) : local.dim();
  const Layout* layout = checked_layout(impl, placements, dims);
  // Ranks that take it for different things need not meet over it later; a check compares more.
  TensorOrigin origin;
  if (!options.run_check) origin = log_layout("from_local", *layout, local.scalar_type(), options.shape);
  Shape shape;
  if (options.run_check) {
    shape = shape_of_checked_shards(local, *layout, options.shape);
  } else {
    shape = options.shape ? *options.shape : shape_of_equal_shards(local.sizes(), *layout);
    TORCH_CHECK_VALUE(is_outside || shape.size() == local.sizes().size(),
                      "meshtorch: from_local: the shape has ", shape.size(), " dims, the shard ",
                      local.dim());
    const Shape expected = local_shape_of(shape, *layout);
    TORCH_CHECK_VALUE(!impl.coordinate() || local.sizes() == c10::IntArrayRef(expected),
                      "meshtorch: from_local: the shard is ", local.sizes(), ", but of ",
                      c10::IntArrayRef(shape), " under ", to_string(layout->placements), " it would be ",
                      c10::IntArrayRef(expected));
  }
  const bool is_assumed = !options.run_check && !options.shape && is_split(*layout);
  const AssumedShapePtr assumed = is_assumed ? assume(local, *layout, shape) : nullptr;
  const Shape dense = is_outside ? dense_strides(shape) : dense_strides_like(shape, local.strides());
  const Shape strides = options.stride ? *options.stride : dense;
  const auto wrapped = [&](const at::Tensor& x) {
    // A rank outside the mesh holds a stand-in.
    at::Tensor mine = impl.coordinate() ? x.detach() : at::zeros(local_shape_of(shape, *layout), x.options());
    if (options.run_check) mine = copies_of_first(std::move(mine), *layout);
    note_exposed(mine);
    at::Tensor whole = wrap(std::move(mine), layout, shape, strides);
    DTensorMeta& meta = distributed(whole, "from_local");
    meta.assumed = assumed;
    meta.origin = origin;
    if (!options.run_check && values == ReplicaValues::compared) declare_replica(meta, shape);
    return whole;
  };
  if (!is_recorded(local) && !options.grad_placements) {
    const at::NoGradGuard no_grad;
    return wrapped(local);
  }
  const Placements back = options.grad_placements.value_or(gradient_placements(layout->placements));
  const Layout* gradient_layout = checked_layout(impl, back, dims);
  return differentiable("FromLocalBackward", local, wrapped,
                        // The mesh keeps the layout alive.
                        [gradient_layout, mesh, sizes = local.sizes().vec()](const at::Tensor& gradient) {
                          const HiddenFromModes hidden_too;
                          wait_pending(distributed(gradient, "redistribute").local);
                          const at::Tensor mine = local_gradient(gradient, *gradient_layout);
                          return gradient_layout->mesh->coordinate() ? mine
                                                                     : at::zeros(sizes, mine.options());
                        });
}

DTensor DTensor::from_local(const at::Tensor& local, const DeviceMesh& mesh, const Placements& placements,
                            const FromLocalOptions& options) {
  return made_of_local(local, mesh, placements, options, ReplicaValues::compared);
}

at::Tensor DTensor::to_local(const ToLocalOptions& options) const {
  const DTensorMeta& meta = distributed(*this, "to_local");
  if (!is_recorded(*this) && !options.grad_placements) {
    const at::NoGradGuard no_grad;
    return shard_of(*this);
  }
  const Placements back = options.grad_placements.value_or(gradient_placements(meta.layout->placements));
  checked_layout(*meta.mesh, back, dim());
  const Shape shape = sizes().vec();
  const Shape stride = strides().vec();
  const DeviceMesh mesh(meta.mesh);
  return differentiable(
      "ToLocalBackward", *this, [](const at::Tensor& x) { return shard_of(x); },
      [=](const at::Tensor& gradient) -> at::Tensor {
        return made_of_local(dense_like(gradient, stride), mesh, back, {.shape = shape, .stride = stride},
                             ReplicaValues::taken);
      });
}

at::Tensor internal::redistribute_to_local(const at::Tensor& tensor, const Layout* to,
                                           const RedistributeOptions& options) {
  const Layout* from = distributed(tensor, "to_local").layout;
  const Placements back = gradient_placements(to->placements);
  const Layout* from_back = from->mesh->layout(gradient_placements(from->placements));
  const DeviceMesh from_mesh(from->mesh->shared_from_this());  // keeps the layout alive
  const Shape shape = tensor.sizes().vec();
  const Shape stride = tensor.strides().vec();
  const DeviceMesh mesh(to->mesh->shared_from_this());
  return differentiable(
      "RedistributeToLocalBackward", tensor,
      [=](const at::Tensor& x) { return shard_of(redistribute_tensor(x, to, options)); },
      [=, keeps_alive = from_mesh](const at::Tensor& gradient) -> at::Tensor {
        const at::Tensor whole = made_of_local(dense_like(gradient, stride), mesh, back,
                                               {.shape = shape, .stride = stride}, ReplicaValues::taken);
        return redistribute_tensor(whole, from_back, {.async_op = options.async_op});
      });
}

at::Tensor DTensor::full_tensor(const ToLocalOptions& options) const {
  return redistribute(Placements(placements().size())).to_local(options);
}

DTensor DTensor::redistribute(const Placements& placements, const RedistributeOptions& options) const {
  const DTensorMeta& meta = distributed(*this, "redistribute");
  const Layout* to = checked_layout(*meta.mesh, placements, dim());
  // A shape that was concluded from one shard is compared by itself.
  log_layout("redistribute", *to, scalar_type(), meta.assumed ? std::nullopt : std::optional(sizes().vec()),
             meta.layout);
  return redistribute_tensor(*this, to, options);
}

DTensor DTensor::redistribute(const DeviceMesh& mesh, const Placements& placements,
                              const RedistributeOptions& options) const {
  return redistribute_tensor(*this, checked_layout(impl_of(mesh), placements, dim()), options);
}

const Placements& DTensor::placements() const { return distributed(*this, "placements").layout->placements; }
DeviceMesh DTensor::device_mesh() const { return DeviceMesh(distributed(*this, "device_mesh").mesh); }

DTensorSpec DTensor::spec() const {
  return {device_mesh(), placements(), sizes().vec(), strides().vec(), scalar_type()};
}

std::string DTensorSpec::to_string() const {
  return c10::str("DTensor(", c10::toString(dtype), c10::IntArrayRef(shape), ", ",
                  meshtorch::to_string(placements), " on ", mesh.to_string(), ")");
}

std::ostream& operator<<(std::ostream& out, const DTensor& tensor) {
  out << tensor.spec().to_string();
  const DTensorMeta& meta = distributed(tensor, "printing");
  if (!meta.mesh->coordinate()) return out << ", not on rank " << meta.mesh->world_rank();
  // Nothing is sent to print it: one rank may do so by itself.
  if (meta.write_back && meta.write_back->is_outdated())
    out << ", as it was before its base was written; to_local() brings it up to date";
  return out << ", shard of rank " << meta.mesh->world_rank() << ":\n" << meta.local;
}

std::string explain_redistribute(const DTensor& tensor, const Placements& placements) {
  return explain_redistribute(tensor, tensor.device_mesh(), placements);
}

std::string explain_redistribute(const DTensor& tensor, const DeviceMesh& mesh,
                                 const Placements& placements) {
  const DTensorMeta& meta = distributed(tensor, "explain_redistribute");
  const Layout* to = checked_layout(impl_of(mesh), placements, tensor.dim());
  const Shape shape = tensor.sizes().vec();
  const auto item_size = static_cast<std::int64_t>(tensor.element_size());
  if (to->mesh == meta.layout->mesh) return plan_between(shape, item_size, *meta.layout, *to)->to_string();
  return plan_between_meshes(shape, item_size, *meta.layout, *to).to_string() + "  from " +
         tensor.device_mesh().to_string() + "\n  to " + mesh.to_string() + "\n";
}

}  // namespace meshtorch
