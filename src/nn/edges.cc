// Conversions between plain and distributed tensors at the edge of a module.
#include "nn/edges.h"

#include "tensor/meta.h"
#include "tensor/redistribute.h"

namespace meshtorch::internal {
namespace {

std::size_t axis_of(const DeviceMesh& whole, const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(
      !mesh.names().empty(),
      "meshtorch: a parallel style cannot tell along which axis it runs\n  mesh of the tensor: ",
      whole.to_string(), "\n  mesh of the style: ", mesh.to_string(),
      "\n  do: give the axes names, as in init_device_mesh(device, {2, 2}, {\"dp\", \"tp\"})");
  return static_cast<std::size_t>(whole.axis(mesh.names()[0]));
}

}  // namespace

DTensor annotated(const at::Tensor& tensor, const DeviceMesh& mesh, const Placement& layout,
                  const std::optional<KnownSize>& known) {
  if (is_dtensor(tensor)) return tensor;
  FromLocalOptions options;
  if (known && layout.is_shard() &&
      layout.normalized(tensor.dim()).dim() == Shard(known->dim).normalized(tensor.dim()).dim()) {
    options.shape = tensor.sizes().vec();
    (*options.shape)[static_cast<std::size_t>(layout.normalized(tensor.dim()).dim())] = known->size;
  }
  return DTensor::from_local(tensor, mesh, {layout}, options);
}

namespace {

// The layout that moved_to gives the tensor.
const Layout* layout_along(const DTensor& tensor, const DeviceMesh& mesh, const Placement& layout) {
  const DTensorMeta& meta = distributed(tensor, "a parallel style");
  const Placement wanted = layout.normalized(tensor.dim());
  Placements placements = meta.layout->placements;
  const std::size_t axis = placements.size() == 1 ? 0 : axis_of(tensor.device_mesh(), mesh);
  if (placements[axis] == wanted) return meta.layout;
  placements[axis] = wanted;
  return checked_layout(*meta.mesh, placements, tensor.dim());
}

}  // namespace

DTensor moved_to(const DTensor& tensor, const DeviceMesh& mesh, const Placement& layout) {
  const Layout* to = layout_along(tensor, mesh, layout);
  if (to == distributed(tensor, "a parallel style").layout) return tensor;
  return redistribute_tensor(tensor, to, {.async_op = true});
}

at::Tensor shard_if(bool use_local, const DTensor& tensor) {
  return use_local ? tensor.to_local() : at::Tensor(tensor);
}

at::Tensor Edges::enter(const at::Tensor& tensor, const DeviceMesh& mesh) const {
  return moved_to(annotated(tensor, mesh, input, input_size), mesh, desired_input);
}

at::Tensor Edges::leave(const at::Tensor& tensor, const DeviceMesh& mesh) const {
  if (!output) return use_local_output ? DTensor(tensor).to_local() : tensor;
  if (!use_local_output) return moved_to(tensor, mesh, *output);
  const Layout* to = layout_along(tensor, mesh, *output);
  if (to == distributed(tensor, "a parallel style").layout) return DTensor(tensor).to_local();
  return redistribute_to_local(tensor, to, {.async_op = true});
}

bool Edges::need_no_hooks() const {
  return input == desired_input && (!output || output == natural_output) && !use_local_output;
}

}  // namespace meshtorch::internal
