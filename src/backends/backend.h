// Making LibTorch process groups on each of the backends.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <chrono>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch::internal {

class MemoryBackend;
struct World;

// The group of `ranks`, in which this rank has number `rank`. Meets the other members where the backend needs
// that.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const World& world,
                                                          const std::vector<std::int64_t>& ranks, int rank);

// Its backend, if the ranks share memory; else null.
MemoryBackend* memory_backend_of(c10d::ProcessGroup& group);

// Throws unless the backend is known and was built in.
void check_backend(const std::string& backend);
// Throws NotImplementedError with the reason unless the backend nccl can work in this process.
void check_nccl();
// "nccl" where it can work, else "shm".
std::string default_backend();

// World ranks `ranks`, all on this host, on which `ranks_on_host` ranks run.
MESHTORCH_FOR_PYTHON c10::intrusive_ptr<c10d::Backend> make_shm_backend(
    c10d::Store& store, const std::vector<std::int64_t>& ranks, int rank, int ranks_on_host,
    std::chrono::milliseconds timeout);

// One factory for each backend.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store,
                                                    const std::vector<std::int64_t>& ranks, int rank);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size);
c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size);

}  // namespace meshtorch::internal
