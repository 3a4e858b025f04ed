// Tensors that meshtorch makes for itself.
#pragma once

#include <ATen/core/TensorBody.h>

namespace meshtorch::internal {

// In the memory of the CPU, with data, also while an on_meta_device lives: that decides where no device is
// named.
inline at::TensorOptions on_host(at::ScalarType type) { return at::TensorOptions(at::kCPU).dtype(type); }

}  // namespace meshtorch::internal
