// What differs between the versions of LibTorch that meshtorch is built for: one constant for each
// difference.
#pragma once

#include <torch/headeronly/version.h>

namespace meshtorch::internal {

constexpr bool libtorch_is_at_least(int major, int minor) {
  return TORCH_VERSION_MAJOR > major || (TORCH_VERSION_MAJOR == major && TORCH_VERSION_MINOR >= minor);
}

// `x[[0, 2]] = 1` calls index_fill_; before it called index_put_.
inline constexpr bool kAssignmentFillsIndices = libtorch_is_at_least(2, 15);

}  // namespace meshtorch::internal
