// fully_shard: one group of the parameters of a module, split over an axis.
#include "meshtorch/fully_shard.h"

#include <ATen/core/Tensor.h>

#include "data_parallel/module_hooks.h"
#include "data_parallel/shard_options.h"
#include "nn/hookable_module.h"

namespace meshtorch {

DataMesh shard_mesh(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(
      mesh.ndim() == 1 || mesh.ndim() == 2, "meshtorch: fully_shard got a mesh of ", mesh.ndim(),
      " axes\n  mesh: ", mesh.to_string(),
      "\n  do: give one axis to shard over, mesh[\"dp\"], or two, to replicate and to shard over");
  if (mesh.ndim() == 1) return {mesh, std::nullopt, 0};
  return {mesh, 0, 1};
}

std::optional<std::int64_t> shard_dim(const std::string& name, const at::Tensor& parameter,
                                      const std::optional<Placement>& given) {
  if (!given) return parameter.dim() == 0 ? std::nullopt : std::optional<std::int64_t>(0);
  TORCH_CHECK_VALUE(given->kind() == Placement::Kind::shard, "meshtorch: shard_placement_fn gave ",
                    given->to_string(), " for ", name, "\n  do: give Shard(dim), or nothing for dim 0");
  TORCH_CHECK_VALUE(given->dim() >= -parameter.dim() && given->dim() < parameter.dim(),
                    "meshtorch: shard_placement_fn gave ", given->to_string(), " for ", name, " of shape ",
                    parameter.sizes(), "\n  do: give a dim that the parameter has");
  return given->normalized(parameter.dim()).dim();
}

FSDPModule::FSDPModule(torch::nn::Module& module, std::shared_ptr<ParameterGroup> group)
    : module_(&module), group_(std::move(group)) {}

void FSDPModule::unshard() { group_->unshard(Form::local); }
void FSDPModule::reshard() { group_->reshard(); }
bool FSDPModule::is_unsharded() const { return group_->is_unsharded(); }

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) {
  for (const auto& group : groups(recurse)) group->set_requires_gradient_sync(requires_gradient_sync);
}

void FSDPModule::set_reshard_after_forward(bool reshard_after_forward, bool recurse) {
  for (const auto& group : groups(recurse)) group->set_reshard_after_forward(reshard_after_forward);
}

std::vector<std::shared_ptr<ParameterGroup>> FSDPModule::groups(bool recurse) const {
  if (!recurse) return {group_};
  auto all = ParameterGroup::of(module_->parameters());
  if (std::ranges::find(all, group_) == all.end()) all.push_back(group_);
  return all;
}

FSDPModule fully_shard(torch::nn::Module& module, const DeviceMesh& mesh, const FullyShardOptions& options) {
  hooks_of(module, "", "fully_shard");
  const DataMesh data = shard_mesh(mesh);
  std::vector<NamedParameter> parameters = free_parameters(module);
  for (NamedParameter& p : parameters) {
    const auto given = options.shard_placement_fn ? options.shard_placement_fn(p.name, p.tensor)
                                                  : std::optional<Placement>();
    p.dim = shard_dim(p.name, p.tensor, given);
  }
  const auto group = ParameterGroup::make(parameters, {.name = "fully_shard of " + class_of(module),
                                                       .data = data,
                                                       .reshard_after_forward = options.reshard_after_forward,
                                                       .precision = options.mp_policy,
                                                       .source = options.src_data_rank});
  add_hooks(module, group, "fully_shard");
  return {module, group};
}

}  // namespace meshtorch
