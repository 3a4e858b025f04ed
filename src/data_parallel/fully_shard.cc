// fully_shard: one group of the parameters of a module, split over an axis.
#include "meshtorch/fully_shard.h"

#include <ATen/core/Tensor.h>

#include "data_parallel/module_hooks.h"
#include "data_parallel/shard_options.h"
#include "nn/hookable_module.h"

namespace meshtorch {
using namespace internal;

DataMesh internal::shard_mesh(const DeviceMesh& mesh) {
  TORCH_CHECK_VALUE(
      mesh.ndim() == 1 || mesh.ndim() == 2, "meshtorch: fully_shard expects a 1D or 2D DeviceMesh but got ",
      mesh.to_string(),
      "\n  do: give one axis to shard over, mesh[\"dp\"], or two, to replicate and to shard over");
  if (mesh.ndim() == 1) return {mesh, std::nullopt, 0};
  return {mesh, 0, 1};
}

void internal::check_offload(const DeviceMesh& mesh) {
  TORCH_CHECK_NOT_IMPLEMENTED(mesh.device_type() == c10::DeviceType::CPU,
                              "meshtorch: shards cannot be kept in the memory of the CPU on a mesh of ",
                              mesh.device_type(), "\n  mesh: ", mesh.to_string(),
                              "\n  do: leave offload_policy out, or shard over more ranks");
}

std::optional<std::int64_t> internal::shard_dim(const std::string& name, const at::Tensor& parameter,
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
void FSDPModule::start_unshard() { group_->start_gather(); }
void FSDPModule::reshard() { group_->reshard(); }
bool FSDPModule::is_unsharded() const { return group_->is_unsharded(); }

void FSDPModule::set_requires_gradient_sync(bool requires_gradient_sync, bool recurse) {
  for (const auto& group : groups(recurse)) group->set_requires_gradient_sync(requires_gradient_sync);
}

void FSDPModule::set_requires_all_reduce(bool requires_all_reduce, bool recurse) {
  for (const auto& group : groups(recurse)) group->settings().syncs_copies = requires_all_reduce;
}

void FSDPModule::set_reshard_after_forward(ReshardAfterForward reshard_after_forward, bool recurse) {
  for (const auto& group : groups(recurse)) group->set_reshard_after_forward(reshard_after_forward);
}

void FSDPModule::set_reshard_after_backward(bool reshard_after_backward, bool recurse) {
  for (const auto& group : groups(recurse))
    group->settings().reshards_after_backward = reshard_after_backward;
}

void FSDPModule::set_unshard_in_backward(bool unshard_in_backward) {
  group_->settings().unshards_in_backward = unshard_in_backward;
}

void FSDPModule::set_reduce_scatter_unused_params(bool reduce_scatter_unused_params, bool recurse) {
  for (const auto& group : groups(recurse)) group->set_counts_unused(reduce_scatter_unused_params);
}

void FSDPModule::set_gradient_divide_factor(double factor) {
  TORCH_CHECK_VALUE(factor != 0, "meshtorch: set_gradient_divide_factor got 0\n  do: give another number");
  group_->settings().divisor = factor;
}

void FSDPModule::set_force_sum_reduction_for_comms(bool enable) { group_->settings().sums_only = enable; }

void FSDPModule::set_all_reduce_hook(std::function<void(const at::Tensor&)> hook) {
  group_->settings().on_reduced = std::move(hook);
}

void FSDPModule::set_modules_to_forward_prefetch(const std::vector<FSDPModule>& modules) {
  auto& groups = group_->settings().forward_prefetch.emplace();
  for (const FSDPModule& module : modules) groups.push_back(module.group_);
}

void FSDPModule::set_modules_to_backward_prefetch(const std::vector<FSDPModule>& modules) {
  auto& groups = group_->settings().backward_prefetch.emplace();
  for (const FSDPModule& module : modules) groups.push_back(module.group_);
}

void FSDPModule::reset_iter_state() {
  for (const auto& group : groups(/*recurse=*/true)) group->reset_pass();
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
  if (options.offload_policy) check_offload(mesh);
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
