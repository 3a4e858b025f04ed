// distribute_module: parameters become distributed in place, functions go to the module's edge.
#include "meshtorch/distribute_module.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/variable.h>

#include <map>
#include <memory>
#include <mutex>

#include "meshtorch/dtensor.h"
#include "nn/hookable_module.h"
#include "nn/replicate_over.h"

namespace meshtorch {
using namespace internal;
namespace {

// The plain modules that were distributed; the others know it themselves.
class DistributedModules {
 public:
  // False if the module is known already.
  bool insert(torch::nn::Module& module) {
    const std::lock_guard lock(mutex_);
    std::erase_if(modules_, [](const auto& entry) { return entry.second.expired(); });
    return modules_.emplace(&module, module.weak_from_this()).second;
  }

 private:
  std::mutex mutex_;
  std::map<const torch::nn::Module*, std::weak_ptr<torch::nn::Module>> modules_;
};

void mark_distributed(torch::nn::Module& module) {
  static DistributedModules plain_modules;
  auto* hooks = dynamic_cast<Hookable*>(&module);
  const bool is_first = hooks != nullptr ? !hooks->is_distributed : plain_modules.insert(module);
  TORCH_CHECK(is_first,
              "meshtorch: distribute_module should only be called once on a module, but it has already been "
              "called on this module!\n  module: ",
              class_of(module), "\n  do: distribute everything in one call, with one partition_fn");
  if (hooks != nullptr) hooks->is_distributed = true;
}

void replicate_over_mesh(torch::nn::Module& module, const DeviceMesh& mesh) {
  const auto replicate = [&](const at::Tensor& tensor) {
    if (!tensor.defined()) return;
    if (const at::Tensor replicated = replicated_over(tensor, mesh); replicated.defined())
      replace_data(tensor, replicated);
  };
  for (const auto& parameter : module.named_parameters(/*recurse=*/false)) replicate(parameter.value());
  for (const auto& buffer : module.named_buffers(/*recurse=*/false)) replicate(buffer.value());
}

void warn_if_deprecated(const EdgeFn& fn, const char* name, const char* values) {
  if (!fn || fn.takes_module()) return;
  TORCH_WARN("Deprecating ", name, " that takes two arguments (", values, ", device_mesh), please use ", name,
             " that takes in (module, ", values, ", device_mesh) instead!");
}

}  // namespace

void replace_data(const at::Tensor& parameter, const at::Tensor& data) {
  const at::NoGradGuard no_grad;
  const at::Tensor plain = data.detach();
  c10::TensorImpl* impl = parameter.unsafeGetTensorImpl();
  if (impl->has_compatible_shallow_copy_type(plain.key_set())) {
    parameter.set_data(plain);
    return;
  }
  // set_data() refuses to go from the meta device to another one, though nothing is lost by it.
  if (auto* meta = torch::autograd::impl::get_autograd_meta(parameter)) meta->grad_accumulator_.reset();
  impl->shallow_copy_from(plain.getIntrusivePtr());
}

void distribute_parameter(at::Tensor& parameter, const DeviceMesh& mesh, const Placements& placements,
                          const DistributeOptions& options) {
  at::Tensor gradient = parameter.grad();
  if (gradient.defined()) gradient = distribute_tensor(gradient, mesh, placements, options);
  parameter.mutable_grad() = at::Tensor();
  replace_data(parameter, distribute_tensor(parameter.detach(), mesh, placements, options));
  parameter.mutable_grad() = gradient;
}

torch::nn::Module& distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                     const PartitionFn& partition_fn, EdgeFn input_fn, EdgeFn output_fn) {
  if (input_fn || output_fn) hooks_of(module, "", "distribute_module");
  for (const at::Tensor& tensor : module.parameters()) check_replicates_over(tensor, mesh);
  for (const at::Tensor& tensor : module.buffers()) check_replicates_over(tensor, mesh);
  mark_distributed(module);
  warn_if_deprecated(input_fn, "input_fn", "inputs");
  warn_if_deprecated(output_fn, "output_fn", "outputs");
  const auto visit = [&](const std::string& name, torch::nn::Module& part) {
    if (partition_fn) partition_fn(name, part, mesh);
    replicate_over_mesh(part, mesh);
  };
  visit("", module);
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    visit(part.key(), *part.value());
  const auto hook_of = [mesh](EdgeFn fn) {
    return [fn = std::move(fn), mesh](torch::nn::Module& m, Values& values) { fn(m, values, mesh); };
  };
  if (input_fn)
    hooks_of(module, "", "distribute_module").register_forward_pre_hook(hook_of(std::move(input_fn)));
  if (output_fn)
    hooks_of(module, "", "distribute_module").register_forward_hook(hook_of(std::move(output_fn)));
  return module;
}

}  // namespace meshtorch
