// move_module: the parameters and buffers of a module go to another mesh, in place.
#include <torch/nn/module.h>

#include <vector>

#include "meshtorch/between_meshes.h"
#include "meshtorch/distribute_module.h"

namespace meshtorch {
using namespace internal;
namespace {

struct ModuleMove {
  at::Tensor tensor;
  Placements to;
};

Placements placements_after(const DeviceMesh& mesh, const std::string& name, const at::Tensor& tensor,
                            const PlacementsFn& wanted) {
  TORCH_CHECK_VALUE(is_dtensor(tensor), "meshtorch: move_module met a plain tensor\n  name: ", name,
                    ", shape ", tensor.sizes(), "\n  do: call distribute_module first");
  if (wanted) return wanted(name, tensor);
  const DTensor distributed(tensor);
  TORCH_CHECK_VALUE(mesh.ndim() == distributed.device_mesh().ndim(), "meshtorch: move_module to a mesh of ",
                    mesh.ndim(), " axes from one of ", distributed.device_mesh().ndim(), "\n  name: ", name,
                    "\n  do: say how each parameter is to lie, with move_module(module, mesh, placements)");
  return distributed.placements();
}

void move_one(const ModuleMove& move, const DeviceMesh& mesh) {
  const at::NoGradGuard no_grad;
  const DTensor tensor(move.tensor);
  if (tensor.device_mesh() == mesh && tensor.placements() == move.to) return;  // shared by two modules
  at::Tensor gradient = tensor.grad();
  if (gradient.defined()) gradient = DTensor(gradient).redistribute(mesh, move.to);
  move.tensor.mutable_grad() = at::Tensor();
  replace_data(move.tensor, DTensor(tensor.detach()).redistribute(mesh, move.to));
  move.tensor.mutable_grad() = gradient;
}

}  // namespace

void move_module(torch::nn::Module& module, const DeviceMesh& mesh, const PlacementsFn& placements) {
  std::vector<ModuleMove> moves;  // all are checked before the first one communicates
  const auto plan = [&](const std::string& name, const at::Tensor& tensor) {
    if (tensor.defined()) moves.push_back({tensor, placements_after(mesh, name, tensor, placements)});
  };
  for (const auto& parameter : module.named_parameters()) plan(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) plan(buffer.key(), buffer.value());
  for (const ModuleMove& one : moves) move_one(one, mesh);
}

}  // namespace meshtorch
