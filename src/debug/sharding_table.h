// The table of how parameters lie, for modules of either language.
#pragma once

#include <ATen/core/Tensor.h>

#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch::internal {

using NamedTensors = std::vector<std::pair<std::string, at::Tensor>>;
MESHTORCH_FOR_PYTHON std::string sharding_table(const NamedTensors& parameters);

}  // namespace meshtorch::internal
