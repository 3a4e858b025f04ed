// Splitting tensors that every rank has in full, and making new ones shard by shard.
#include <ATen/ATen.h>

#include "meshtorch/collectives.h"
#include "meshtorch/dtensor.h"
#include "runtime/hidden_from_modes.h"
#include "runtime/host_tensor.h"
#include "runtime/transforms.h"
#include "signature/collective_signature.h"
#include "tensor/check_dense.h"
#include "tensor/execute.h"
#include "tensor/log_layout.h"
#include "tensor/meta.h"
#include "tensor/new_sizes.h"
#include "tensor/redistribute.h"
#include "tensor/replica_sample.h"
#include "transport/transport.h"
#include "world/rank_context.h"

namespace meshtorch {
using namespace internal;
namespace {

// The parts of a dim, one for each rank of an axis.
std::vector<at::Tensor> parts_of(const at::Tensor& data, const Placement& placement, std::int64_t extent) {
  const std::int64_t dim = placement.dim();
  std::vector<at::Tensor> parts;
  for (std::int64_t i = 0; i < extent; ++i) {
    std::vector<at::Tensor> runs{data.narrow(dim, 0, 0)};
    for (const Range& run : split({{0, data.size(dim)}}, placement, extent, i))
      runs.push_back(data.narrow(dim, run.begin, run.size));
    parts.push_back(runs.size() == 2 ? runs[1] : at::cat(runs, dim));
  }
  return parts;
}

// This rank's part, under a layout without pending axes, of the data that the source rank along every axis
// has.
at::Tensor from_source(at::Tensor data, const Layout& layout, int source) {
  const MeshImpl& mesh = *layout.mesh;
  for (const std::int64_t extent : mesh.shape()) {
    TORCH_CHECK_VALUE(source >= 0 && source < extent, "meshtorch: src_data_rank ", source,
                      " is not in an axis of ", extent, " ranks");
  }
  for (std::size_t axis = 0; axis < mesh.shape().size(); ++axis) {
    if (mesh.shape()[axis] == 1) continue;
    const Group group = mesh.group({static_cast<int>(axis)});
    const Placement& p = layout.placements[axis];
    data = p.is_shard() ? TransportOf(group, data)->scatter(parts_of(data, p, mesh.shape()[axis]), source)
                        : wait_tensor(broadcast(data, source, group));
  }
  return data;
}

DTensor as_leaf(at::Tensor local, const Layout* layout, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                bool requires_grad) {
  at::Tensor result = wrap(std::move(local), layout, sizes, strides);
  return result.requires_grad_(requires_grad);
}

DTensor check_distributed(const DTensor& tensor, const DeviceMesh& mesh, const Placements& placements) {
  TORCH_CHECK_VALUE(tensor.device_mesh() == mesh, "meshtorch: cannot distribute a DTensor with device mesh ",
                    tensor.device_mesh().to_string(), " to a different device mesh ", mesh.to_string());
  const Layout* layout = checked_layout(impl_of(mesh), placements, tensor.dim());
  TORCH_CHECK_VALUE(distributed(tensor, "distribute_tensor").layout == layout,
                    "meshtorch: cannot distribute a DTensor with placements ", to_string(tensor.placements()),
                    " to a different placements ", to_string(layout->placements), "\n  do: use redistribute");
  return tensor;
}

using MakeLocal = std::function<at::Tensor(const Layout& layout, const at::TensorOptions& options)>;

// Makes the shard, whole where the tensor is to be a pending reduction, and brings it there: that needs no
// communication.
DTensor make_new(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
                 const at::TensorOptions& options, const MakeLocal& make) {
  const HiddenFromModes hidden;
  check_new_sizes(size);
  const OutsideTransforms ordinary;
  MeshImpl& impl = impl_of(mesh);
  const Layout* layout = checked_layout(impl, placements, static_cast<std::int64_t>(size.size()));
  const Layout* whole = impl.layout(gradient_placements(layout->placements));
  const at::TensorOptions on_device = options.has_device() ? options : options.device(mesh.device_type());
  const at::Tensor local = make(*whole, on_device.requires_grad(false));
  return as_leaf(redistribute_local(local, size, *whole, *layout), layout, size, dense_strides(size),
                 options.requires_grad());
}

// The global indices of a dim that this rank holds.
at::Tensor held_indices(std::int64_t size, std::int64_t dim, const Layout& layout) {
  std::vector<at::Tensor> runs{at::empty({0}, on_host(at::kLong))};
  for (const Range& range :
       held_ranges(size, dim, layout.placements, layout.mesh->shape(), coordinate_in(*layout.mesh))) {
    runs.push_back(at::arange(range.begin, range.end(), on_host(at::kLong)));
  }
  return at::cat(runs);
}

}  // namespace

DTensor distribute_tensor(const at::Tensor& tensor, const DeviceMesh& mesh, const Placements& placements,
                          const DistributeOptions& options) {
  if (is_dtensor(tensor)) return check_distributed(tensor, mesh, placements);
  const HiddenFromModes hidden;
  check_dense(tensor, "distribute_tensor");
  const OutsideTransforms ordinary;
  TORCH_CHECK(tensor.is_leaf(),
              "meshtorch: distribute_tensor should be used to distribute leaf tensors, but this one is the "
              "result of an operator\n  "
              "do: call detach() on it first, or use DTensor::from_local, which is differentiable");
  MeshImpl& impl = impl_of(mesh);
  const Layout* layout = checked_layout(impl, placements, tensor.dim());
  for (const Placement& p : layout->placements) {
    TORCH_CHECK_VALUE(!p.is_partial() || p.reduce_op() == ReduceOp::sum || p.reduce_op() == ReduceOp::avg,
                      "meshtorch: distribute_tensor splits into sums and averages only: conversion is not "
                      "supported to ",
                      p.to_string(), "\n  do: give Partial(sum) or Partial(avg)");
  }
  const at::NoGradGuard no_grad;
  const bool communicates =
      options.src_data_rank.has_value() && !tensor.is_meta() && impl.coordinate().has_value();
  const std::string purpose = "distribute_tensor to " + to_string(layout->placements);
  const CallOrigin origin(purpose);
  const TensorOrigin made =
      communicates ? origin_of_made("distribute_tensor", *layout, tensor.scalar_type())
                   : log_layout("distribute_tensor", *layout, tensor.scalar_type(), tensor.sizes().vec());
  at::Tensor data = tensor.detach();
  if (data.device().type() != mesh.device_type() && !data.is_meta()) data = data.to(mesh.device_type());
  const Layout* held = impl.replicated();
  if (communicates) {
    held = impl.layout(gradient_placements(layout->placements));
    data = from_source(data, *held, *options.src_data_rank);
  }
  at::Tensor local = redistribute_local(data, tensor.sizes().vec(), *held, *layout);
  // Dims stay in the order that they have in memory: channels_last stays so.
  const bool is_dense = tensor.is_non_overlapping_and_dense();
  const Shape strides = is_dense ? tensor.strides().vec() : dense_strides(tensor.sizes());
  const Shape local_strides = dense_strides_like(local.sizes(), strides);
  // The shard owns its memory, and only as much as it needs.
  if (local.is_alias_of(tensor) || local.numel() != data.numel() ||
      local.strides() != at::IntArrayRef(local_strides))
    local = at::empty_strided(local.sizes(), local_strides, local.options()).copy_(local);
  DTensor result = as_leaf(std::move(local), layout, tensor.sizes(), strides, tensor.requires_grad());
  DTensorMeta& meta = distributed(result, "distribute_tensor");
  meta.origin = made;
  declare_replica(meta, tensor.sizes().vec());
  return result;
}

DTensor empty(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
              const at::TensorOptions& options) {
  return make_new(size, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return at::empty(local_shape_of(size, layout), o);
  });
}

DTensor zeros(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
              const at::TensorOptions& options) {
  return full(size, 0.0, mesh, placements, options);
}

DTensor ones(const Shape& size, const DeviceMesh& mesh, const Placements& placements,
             const at::TensorOptions& options) {
  return full(size, 1.0, mesh, placements, options);
}

DTensor full(const Shape& size, const at::Scalar& value, const DeviceMesh& mesh, const Placements& placements,
             const at::TensorOptions& options) {
  return make_new(size, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return at::full(local_shape_of(size, layout), value, o);
  });
}

DTensor arange(std::int64_t end, const DeviceMesh& mesh, const Placements& placements,
               const at::TensorOptions& options) {
  return make_new({end}, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return held_indices(end, 0, layout).to(o.has_dtype() ? o : o.dtype(at::kLong));
  });
}

DTensor eye(std::int64_t n, const DeviceMesh& mesh, const Placements& placements,
            const at::TensorOptions& options) {
  return make_new({n, n}, mesh, placements, options, [&](const Layout& layout, const at::TensorOptions& o) {
    return held_indices(n, 0, layout)
        .unsqueeze(1)
        .eq(held_indices(n, 1, layout))
        .to(o.has_dtype() ? o : o.dtype(at::kFloat));
  });
}

}  // namespace meshtorch
