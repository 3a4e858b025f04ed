// split: the children of a Sequential in parts.
#include <torch/nn/modules/container/sequential.h>

#include <algorithm>

#include "meshtorch/pipeline.h"

namespace meshtorch {
namespace {

// Parts that begin at the given numbers of children, ascending; the first begins at 0.
std::vector<torch::nn::Sequential> split_at(const torch::nn::Sequential& module,
                                            const std::vector<std::size_t>& begins) {
  const std::vector<std::string> names = module->named_children().keys();
  std::vector<torch::nn::Sequential> parts;
  std::size_t child = 0;
  for (torch::nn::AnyModule& any : *torch::nn::Sequential(module)) {
    if (parts.size() < begins.size() && begins[parts.size()] == child) parts.emplace_back();
    parts.back()->push_back(names[child], any);
    ++child;
  }
  return parts;
}

}  // namespace

std::vector<torch::nn::Sequential> split(const torch::nn::Sequential& module, int stages) {
  const auto children = static_cast<int>(module->size());
  TORCH_CHECK_VALUE(stages > 0 && stages <= children, "meshtorch: a Sequential of ", children,
                    " children cannot be split into ", stages, " stages\n  do: ask for 1 to ", children,
                    " stages");
  std::vector<std::size_t> begins;
  for (int stage = 0; stage < stages; ++stage)
    begins.push_back(
        static_cast<std::size_t>(stage * (children / stages) + std::min(stage, children % stages)));
  return split_at(module, begins);
}

std::vector<torch::nn::Sequential> split(const torch::nn::Sequential& module,
                                         const std::vector<std::string>& first_children) {
  const std::vector<std::string> names = module->named_children().keys();
  std::vector<std::size_t> begins{0};
  for (const std::string& name : first_children) {
    const auto child = static_cast<std::size_t>(std::ranges::find(names, name) - names.begin());
    TORCH_CHECK_VALUE(child < names.size() && child > begins.back(),
                      "meshtorch: a Sequential cannot be split before child \"", name, "\": ",
                      child == names.size() ? "it has no such child"
                      : child == 0          ? "the first part begins there"
                                            : "the names are not in the order of its children",
                      "\n  do: name some of its children but the first, in order");
    begins.push_back(child);
  }
  return split_at(module, begins);
}

}  // namespace meshtorch
