// Tensors of a module on the axes of a mesh.
#include "nn/replicate_over.h"

#include <ATen/ATen.h>

#include "backends/pending.h"
#include "meshtorch/collectives.h"
#include "meshtorch/dtensor.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// The mesh of the tensor's axes and those of `mesh`.
std::shared_ptr<MeshImpl> joined_mesh(const DTensorMeta& meta, const DeviceMesh& mesh) {
  if (meta.mesh.get() == &impl_of(mesh)) return meta.mesh;
  auto joined = meta.mesh->joined_with(impl_of(mesh));
  TORCH_CHECK_VALUE(joined, "meshtorch: a tensor on one mesh cannot be replicated over another\n  its mesh: ",
                    DeviceMesh(meta.mesh).to_string(), "\n  the other: ", mesh.to_string(),
                    "\n  do: take both from one mesh with names, as in mesh[\"dp\"] and mesh[\"tp\"]");
  return joined;
}

}  // namespace

void check_replicates_over(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (tensor.defined() && is_dtensor(tensor)) joined_mesh(distributed(tensor, "distribute_module"), mesh);
}

at::Tensor replicated_over(const at::Tensor& tensor, const DeviceMesh& mesh) {
  if (!is_dtensor(tensor))
    return distribute_tensor(tensor.detach(), mesh, Placements(static_cast<std::size_t>(mesh.ndim())));
  const DTensorMeta& meta = distributed(tensor, "distribute_module");
  const auto joined = joined_mesh(meta, mesh);
  if (joined == meta.mesh) return {};
  const at::NoGradGuard no_grad;
  at::Tensor local = meta.local;
  wait_pending(local);
  Placements placements;
  for (std::size_t axis = 0; axis < joined->names().size(); ++axis) {
    const auto& names = meta.mesh->names();
    const auto known = std::find(names.begin(), names.end(), joined->names()[axis]);
    if (known != names.end()) {
      placements.push_back(meta.layout->placements[static_cast<std::size_t>(known - names.begin())]);
      continue;
    }
    placements.push_back(Replicate());
    if (!local.is_meta() && joined->coordinate())
      local = wait_tensor(broadcast(local, 0, joined->group({static_cast<int>(axis)})));
  }
  return wrap(local, joined->layout(placements), tensor.sizes(), tensor.strides());
}

}  // namespace meshtorch::internal
