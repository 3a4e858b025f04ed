// Which modules are running on this rank, forward or backward, while a debug mode wants to know.
#pragma once

#include <string>
#include <vector>

namespace meshtorch {

struct RunningModules {
  std::vector<std::string> paths;  // from the outermost module to the innermost
  bool is_backward = false;
};

// Of the operator that is running: in forward, the modules whose forward runs; in backward, those that ran
// when the operator's node was recorded.
RunningModules running_modules();

// Starts from nothing, or ends.
void watch_modules(bool watch);

}  // namespace meshtorch
