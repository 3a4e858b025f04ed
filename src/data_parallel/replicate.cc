// replicate: one group of the parameters of a module, whole on every rank, whose gradients are reduced in
// buckets.
#include "meshtorch/replicate.h"

#include <ATen/ATen.h>

#include "data_parallel/module_hooks.h"
#include "data_parallel/shard_options.h"
#include "meshtorch/collectives.h"
#include "meshtorch/dtensor.h"
#include "nn/hookable_module.h"

namespace meshtorch {
using namespace internal;
namespace {

void broadcast_buffers(const std::vector<at::Tensor>& buffers, const DataMesh& data, int source) {
  const at::NoGradGuard no_grad;
  const auto group = data.group(data.replicate_axis);
  if (!group) return;
  for (const at::Tensor& buffer : buffers) {
    if (!buffer.defined() || buffer.is_meta()) continue;
    const at::Tensor mine = is_dtensor(buffer) ? DTensor(buffer).to_local() : buffer;
    mine.copy_(wait_tensor(broadcast(mine, source, *group)));
  }
}

DataMesh replicate_mesh(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(mesh.ndim() == 1, "meshtorch: replicate got a mesh of ", mesh.ndim(),
                    " axes\n  mesh: ", mesh.to_string(),
                    "\n  do: give one axis, as in mesh[\"dp\"], or flatten several into one");
  return {mesh, 0, std::nullopt};
}

}  // namespace

std::shared_ptr<ParameterGroup> internal::replicated_group(const std::string& name,
                                                           const std::vector<NamedParameter>& parameters,
                                                           const std::vector<at::Tensor>& buffers,
                                                           const DeviceMesh& mesh,
                                                           const ReplicateOptions& options) {
  using Unused = ParameterGroupOptions::Unused;
  const DataMesh data = replicate_mesh(mesh);
  const auto group = ParameterGroup::make(
      parameters, {.name = "replicate of " + name,
                   .data = data,
                   .reshard_after_forward = true,
                   .precision = options.mp_policy,
                   .source = options.src_data_rank,
                   .first_bucket_bytes = std::min(options.first_bucket_bytes, options.bucket_bytes),
                   .bucket_bytes = options.bucket_bytes,
                   .unused = options.find_unused_parameters ? Unused::zero_if_used : Unused::error});
  if (options.src_data_rank) broadcast_buffers(buffers, data, *options.src_data_rank);
  return group;
}

void replicate(torch::nn::Module& module, const DeviceMesh& mesh, const ReplicateOptions& options) {
  hooks_of(module, "", "replicate");
  add_hooks(module,
            replicated_group(class_of(module), free_parameters(module), module.buffers(), mesh, options),
            "replicate");
}

}  // namespace meshtorch
