// Hooks of modules: what Hooked<Impl>::forward calls before and after the module's own forward.
#include "meshtorch/module_hooks.h"

#include <c10/util/Exception.h>
#include <torch/nn/module.h>

#include "meshtorch/dtensor.h"

namespace meshtorch {
using namespace internal;

const Values::Entry& Values::entry(std::size_t index) const {
  TORCH_CHECK_VALUE(index < entries_.size(), "meshtorch: value ", index, " of ", entries_.size(),
                    " was asked for");
  return entries_[index];
}

at::Tensor& Values::operator[](std::size_t index) const {
  const Entry& found = entry(index);
  TORCH_CHECK_VALUE(found.tensor != nullptr, "meshtorch: value ", index, found.name.empty() ? "" : ", ",
                    found.name, ", is not a tensor\n  do: ask is_tensor(", index, ") first");
  return *found.tensor;
}

std::optional<std::size_t> Values::find(std::string_view name) const {
  for (std::size_t i = 0; i < entries_.size(); ++i) {
    if (entries_[i].name == name) return i;
  }
  return std::nullopt;
}

Hookable::HookId Hookable::register_forward_pre_hook(PreHook hook) {
  pre_hooks_.emplace_back(++last_id_, std::move(hook));
  return last_id_;
}

Hookable::HookId Hookable::register_forward_hook(Hook hook) {
  hooks_.emplace_back(++last_id_, std::move(hook));
  return last_id_;
}

void Hookable::remove_hook(HookId id) {
  const auto has_id = [id](const auto& hook) { return hook.first == id; };
  std::erase_if(pre_hooks_, has_id);
  std::erase_if(hooks_, has_id);
}

void Hookable::run_pre_hooks(torch::nn::Module& module, Values& inputs) const {
  const auto now = pre_hooks_;  // a hook may remove itself, or add others
  for (const auto& [id, hook] : now) hook(module, inputs);
}

void Hookable::run_hooks(torch::nn::Module& module, Values& outputs) const {
  const auto now = hooks_;
  for (const auto& [id, hook] : now) hook(module, outputs);
}

void Hookable::check_can_be_saved(const torch::nn::Module& module) {
  const auto check = [&](const std::string& name, const at::Tensor& tensor) {
    TORCH_CHECK_VALUE(
        !is_dtensor(tensor), "meshtorch: torch::save cannot write a distributed tensor\n  in: ", name, " of ",
        module.name(),
        "\n  do: use meshtorch::checkpoint::save, or checkpoint::export_hf for one plain model");
  };
  for (const auto& parameter : module.named_parameters()) check(parameter.key(), parameter.value());
  for (const auto& buffer : module.named_buffers()) check(buffer.key(), buffer.value());
}

void Hookable::copy_hooks_below(const torch::nn::Module& from, torch::nn::Module& to) {
  const auto sources = from.named_modules(/*name_prefix=*/"", /*include_self=*/false);
  for (const auto& target : to.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    const auto* source = sources.find(target.key());
    if (source == nullptr) continue;
    const auto* from_hooks = dynamic_cast<const Hookable*>(source->get());
    auto* to_hooks = dynamic_cast<Hookable*>(target.value().get());
    if (from_hooks == nullptr || to_hooks == nullptr) continue;
    to_hooks->pre_hooks_ = from_hooks->pre_hooks_;
    to_hooks->hooks_ = from_hooks->hooks_;
    to_hooks->last_id_ = from_hooks->last_id_;
    to_hooks->is_distributed = from_hooks->is_distributed;
  }
}

}  // namespace meshtorch
