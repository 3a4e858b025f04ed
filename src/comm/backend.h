// Making LibTorch process groups on each of the backends.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <vector>

namespace meshtorch {

struct World;

// The group of `ranks`, in which this rank has number `rank`. Meets the other members where the backend needs
// that.
c10::intrusive_ptr<c10d::ProcessGroup> make_process_group(const World& world,
                                                          const std::vector<std::int64_t>& ranks, int rank);

// Throws unless the backend is known and was built in.
void check_backend(const std::string& backend);
// "nccl" where it can work, else "gloo".
std::string default_backend();

// One factory for each backend; a null result means that it was not built in.
c10::intrusive_ptr<c10d::Backend> make_gloo_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size);
c10::intrusive_ptr<c10d::Backend> make_nccl_backend(const World& world,
                                                    const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                                    int size);
c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size);

}  // namespace meshtorch
