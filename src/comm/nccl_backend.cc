// The `nccl` backend, built only where LibTorch has CUDA. Never run on a machine with a GPU so far.
#include "comm/backend.h"
#include "comm/rank_context.h"

#ifdef USE_C10D_NCCL
#include <ATen/Context.h>
#include <torch/csrc/distributed/c10d/ProcessGroupNCCL.hpp>
#endif

namespace meshtorch::internal {

#ifdef USE_C10D_NCCL

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size) {
  auto options = c10d::ProcessGroupNCCL::Options::create();
  options->timeout = world.timeout;
  return c10::make_intrusive<c10d::ProcessGroupNCCL>(store, rank, size, options);
}

std::string default_backend() { return at::hasCUDA() ? "nccl" : "shm"; }

#else

c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const World&, const c10::intrusive_ptr<c10d::Store>&, int,
                                                    int) {
  return {};
}

std::string default_backend() { return "shm"; }

#endif

}  // namespace meshtorch::internal
