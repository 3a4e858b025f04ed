// Loading a module from what holds tensors by name, in whatever format.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "meshtorch/safetensors.h"

namespace meshtorch::checkpoint::internal {

// What load_parameters needs of a format.
struct TensorSource {
  const std::vector<std::string>& names;
  std::string path;  // for messages
  // The shape of a tensor; null if there is none of that name.
  std::function<const std::vector<std::int64_t>*(const std::string& name)> shape_of;
  // Fills a tensor that was checked.
  std::function<void(const at::Tensor& target, const std::string& name)> fill;
};

// Throws ValueError if a tensor of the source cannot fill the target.
void check_target(const at::Tensor& target, const std::vector<std::int64_t>& shape, const std::string& name,
                  const std::string& path);

safetensors::LoadReport load_parameters(torch::nn::Module& module, const TensorSource& source,
                                        const safetensors::LoadOptions& options);

}  // namespace meshtorch::checkpoint::internal
