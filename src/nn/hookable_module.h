// Finding the hooks of a module, and saying what to do if it has none.
#pragma once

#include <torch/nn/module.h>

#include <string>

#include "meshtorch/module_hooks.h"

namespace meshtorch::internal {

// "layers.0.up (torch::nn::LinearImpl)"
std::string describe_module(const torch::nn::Module& module, const std::string& name);

// The class of the module, without what hooks add to its name.
std::string class_of(const torch::nn::Module& module);

// The hooks of the module. A plain torch::nn module is an error that names it, `who` needs them, and what to
// write.
Hookable& hooks_of(torch::nn::Module& module, const std::string& name, const std::string& who);

inline bool is_hookable(const torch::nn::Module& module) {
  return dynamic_cast<const Hookable*>(&module) != nullptr;
}

}  // namespace meshtorch::internal
