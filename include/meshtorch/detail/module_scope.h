// How debug modes hear of the modules that run.
#pragma once

#include "meshtorch/api.h"

namespace torch::nn {
class Module;
}

namespace meshtorch::detail {

// Marks that a module's forward, hooks included, is running, for debug modes. Costs nothing to speak of while
// none is active.
class MESHTORCH_API ModuleScope {
 public:
  explicit ModuleScope(torch::nn::Module& module);
  ~ModuleScope();
  ModuleScope(const ModuleScope&) = delete;
  ModuleScope& operator=(const ModuleScope&) = delete;

  // True while a debug mode wants to know the modules that run on this rank.
  static bool is_wanted();

 private:
  bool entered_;
};

}  // namespace meshtorch::detail
