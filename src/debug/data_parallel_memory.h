// How much of the parameters that are gathered for use is there at one time.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/memory.h"

namespace meshtorch::internal {

// estimate_memory for modules of either language, by their parameters.
MESHTORCH_FOR_PYTHON std::vector<RankMemory> estimate_data_parallel(
    const std::vector<std::pair<std::string, at::Tensor>>& parameters, const DeviceMesh& mesh,
    const DataParallelEstimate& estimate);

// One group computes while the next is under way.
std::int64_t largest_two(std::vector<std::int64_t> groups);

}  // namespace meshtorch::internal
