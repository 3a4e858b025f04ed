// The modules that a plan's patterns name, for those who only want to know.
#pragma once

#include <string>
#include <vector>

#include "meshtorch/parallelize.h"

namespace meshtorch::internal {

struct StyledModule {
  std::string name;
  Style style;
};
// In the order in which the styles are applied; patterns that match nothing are not in it.
std::vector<StyledModule> styled_modules(const torch::nn::Module& module, const ParallelizePlan& plan);

}  // namespace meshtorch::internal
