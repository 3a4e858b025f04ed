// Factories of LibTorch while an on_meta_device lives.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include <vector>

namespace meshtorch::internal {

// Registers the kernels; what other operators do stays as it is.
void add_meta_factories(std::vector<c10::RegistrationHandleRAII>& handles);

}  // namespace meshtorch::internal
