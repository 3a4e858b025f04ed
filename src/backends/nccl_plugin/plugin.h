// What the library asks of libmeshtorch_nccl.so, which it loads when a program asks for the backend nccl: so
// that other programs start without the CUDA libraries.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>

namespace meshtorch::internal {

struct NcclPlugin {
  // The number of CUDA devices that this process can use.
  int (*device_count)();
  c10::intrusive_ptr<c10d::Backend> (*make_backend)(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size, std::chrono::milliseconds timeout);
};

// The one symbol that is looked up: a `const NcclPlugin`.
inline constexpr const char* kNcclPluginSymbol = "meshtorch_nccl_plugin";

}  // namespace meshtorch::internal
