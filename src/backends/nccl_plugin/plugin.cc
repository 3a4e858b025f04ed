// libmeshtorch_nccl.so: LibTorch's NCCL process group. Built where LibTorch is a CUDA build and the headers
// of CUDA and NCCL were found. Never run on a machine with a GPU so far.
#include "backends/nccl_plugin/plugin.h"

#include <c10/cuda/CUDAFunctions.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>

namespace meshtorch::internal {
namespace {

c10::intrusive_ptr<c10d::Backend> make_backend(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                               int size, std::chrono::milliseconds timeout) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

int device_count() { return c10::cuda::device_count(); }

}  // namespace
}  // namespace meshtorch::internal

extern "C" __attribute__((visibility("default"))) const meshtorch::internal::NcclPlugin meshtorch_nccl_plugin;
const meshtorch::internal::NcclPlugin meshtorch_nccl_plugin{
    .device_count = &meshtorch::internal::device_count, .make_backend = &meshtorch::internal::make_backend};
