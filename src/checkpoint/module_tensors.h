// The tensors that are saved and loaded: which a module has, and what this rank holds of each.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"

namespace torch::nn {
class Module;
}

namespace meshtorch::checkpoint::internal {

// A parameter or buffer, with all the names that it has in its module.
struct ModuleTensor {
  at::Tensor tensor;
  std::vector<std::string> names;
};

// Each tensor once, in the order of the module.
std::vector<ModuleTensor> tensors_of(torch::nn::Module& module);

// Throws ValueError if the tensor is a pending reduction on an axis of its mesh: no rank has its values.
void check_whole(const at::Tensor& tensor, const std::string& name);

// This rank's local tensor, and the global indices that it holds of each dim.
struct Shards {
  at::Tensor local;
  std::vector<std::vector<Range>> held;
};

// All ranks of the mesh call it: a view that is a copy is brought up to date.
Shards shards_of(const at::Tensor& tensor);
// Lets `fill` write the local tensor, after giving memory to one on the meta device; views of the tensor see
// it.
void fill_shards(const at::Tensor& tensor, const std::function<void(const Shards&)>& fill);

// The elements of a box of a plain tensor, sharing its memory.
at::Tensor view_of(const at::Tensor& tensor, const Box& box);

}  // namespace meshtorch::checkpoint::internal
