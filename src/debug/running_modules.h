// Which modules are running on this rank, forward or backward, while a debug mode wants to know.
#pragma once

#include <string>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch::internal {

struct RunningModules {
  std::vector<std::string> paths;  // from the outermost module to the innermost
  bool is_backward = false;
};

// Of the operator that is running: in forward, the modules whose forward runs; in backward, those that ran
// when the operator's node was recorded.
RunningModules running_modules();
// The innermost of them; empty if none runs.
std::string innermost_module();

// Marks that a module begins or ends to run. The names of its parts, from the outermost module on, are its
// path; modules of another language than C++ say it themselves.
MESHTORCH_FOR_PYTHON void enter_module(std::string path);
MESHTORCH_FOR_PYTHON void leave_module();

// One more mode wants to know, or one less. The first starts from nothing.
void watch_modules(bool watch);

}  // namespace meshtorch::internal
