// The groups of C++ modules: which parameters they take, and the hooks that run them.
#pragma once

#include <torch/nn/module.h>

#include "data_parallel/parameter_group.h"

namespace meshtorch::internal {

// The parameters of the module and of those below it that are in no group yet, each once.
std::vector<NamedParameter> free_parameters(const torch::nn::Module& module);

// Runs the group at the edge of the module. `who` is named if the module has no hooks.
void add_hooks(torch::nn::Module& module, const std::shared_ptr<ParameterGroup>& group,
               const std::string& who);

}  // namespace meshtorch::internal
