// Groups at the edges of C++ modules.
#include "data_parallel/module_hooks.h"

#include <set>

#include "nn/hookable_module.h"

namespace meshtorch {
using namespace internal;
namespace {

std::vector<at::Tensor*> tensors_in(Values& values) {
  std::vector<at::Tensor*> tensors;
  for (std::size_t i = 0; i < values.size(); ++i) {
    if (values.is_tensor(i)) tensors.push_back(&values[i]);
  }
  return tensors;
}

}  // namespace

std::vector<NamedParameter> internal::free_parameters(const torch::nn::Module& module) {
  std::vector<NamedParameter> parameters;
  std::set<const c10::TensorImpl*> seen;
  for (const auto& item : module.named_parameters()) {
    const at::Tensor& tensor = item.value();
    if (tensor.defined() && ParameterGroup::of(tensor) == nullptr &&
        seen.insert(tensor.unsafeGetTensorImpl()).second)
      parameters.push_back({item.key(), tensor, std::nullopt});
  }
  return parameters;
}

void internal::add_hooks(torch::nn::Module& module, const std::shared_ptr<ParameterGroup>& group,
                         const std::string& who) {
  Hookable& hooks = hooks_of(module, "", who);
  hooks.register_forward_pre_hook([group, who, owner = &module](torch::nn::Module& self, Values& inputs) {
    TORCH_CHECK_NOT_IMPLEMENTED(&self == owner, "meshtorch: a copy of a module cannot run after ", who,
                                ": its group has the parameters of the original\n  module: ", class_of(self),
                                "\n  do: call clone() before ", who,
                                ", or load the state into a module that is made anew");
    const std::vector<at::Tensor*> tensors = tensors_in(inputs);
    if (group->is_new()) group->become_root_of(self.parameters(), tensors);
    group->before_forward(tensors);
  });
  hooks.register_forward_hook(
      [group](torch::nn::Module&, Values& outputs) { group->after_forward(tensors_in(outputs)); });
}

NoSync::NoSync(torch::nn::Module& module) {
  for (const auto& group : ParameterGroup::of(module.parameters())) {
    if (!group->requires_gradient_sync()) continue;
    group->set_requires_gradient_sync(false);
    silenced_.push_back(group);
  }
}

NoSync::~NoSync() {
  for (const auto& group : silenced_) group->set_requires_gradient_sync(true);
}

}  // namespace meshtorch
