// Finding the hooks of a module, and saying what to do if it has none.
#include "nn/hookable_module.h"

#include <string_view>

namespace meshtorch::internal {

std::string class_of(const torch::nn::Module& module) {
  std::string name = module.name();
  constexpr std::string_view kHooked = "meshtorch::Hooked<";
  if (!name.starts_with(kHooked)) return name;
  int depth = 0;
  std::size_t end = kHooked.size();
  for (; end < name.size(); ++end) {
    if (depth == 0 && (name[end] == ',' || name[end] == '>')) break;
    if (name[end] == '<') ++depth;
    if (name[end] == '>') --depth;
  }
  return name.substr(kHooked.size(), end - kHooked.size());
}

std::string describe_module(const torch::nn::Module& module, const std::string& name) {
  return (name.empty() ? "the module itself" : name) + " (" + class_of(module) + ")";
}

Hookable& hooks_of(torch::nn::Module& module, const std::string& name, const std::string& who) {
  auto* hooks = dynamic_cast<Hookable*>(&module);
  if (hooks != nullptr) return *hooks;
  const std::string type = class_of(module);
  std::string advice = "declare its holder with MESHTORCH_MODULE(Name) in the place of TORCH_MODULE(Name)";
  constexpr std::string_view kLibTorch = "torch::nn::";
  if (type.starts_with(kLibTorch) && type.ends_with("Impl")) {
    const std::string plain = type.substr(kLibTorch.size(), type.size() - kLibTorch.size() - 4);
    const bool is_container =
        plain == "Sequential" || plain.starts_with("Module") || plain.starts_with("Parameter");
    advice = is_container ? "put the " + plain + " inside a module of your own that MESHTORCH_MODULE declares"
                          : "write meshtorch::nn::" + plain + " for torch::nn::" + plain;
  }
  TORCH_CHECK_VALUE(false, "meshtorch: ", who,
                    " converts tensors at the edge of a module that has no hooks\n  module: ",
                    describe_module(module, name), "\n  do: ", advice);
}

}  // namespace meshtorch::internal
