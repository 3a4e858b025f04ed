// Joining and leaving the world of ranks, and what a rank knows of itself.
#pragma once

#include <c10/util/intrusive_ptr.h>

#include <chrono>
#include <optional>
#include <string>

#include "meshtorch/agreement.h"
#include "meshtorch/api.h"
#include "meshtorch/group.h"

namespace c10d {
class Store;
}

namespace meshtorch {

// How a rank joins the world. What is not given comes from the environment.
struct InitOptions {
  // "shm", "gloo", "nccl", "threads" or "fake". Empty: "nccl" where LibTorch has CUDA and a device is there,
  // else "shm" where all ranks are on one host, else "gloo".
  std::string backend = {};
  // "env://", "tcp://host:port", "file:///path" (both also with ?rank=R&world_size=N), or "threads://name".
  std::string init_method = "env://";
  // Taken from the address or the environment if not given; what is said twice must agree.
  int rank = -1;
  int world_size = -1;
  // How long a collective may take before it is an error on every rank that waits.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // How much the ranks compare before data moves. Not given: what MESHTORCH_AGREEMENT says, else `on`.
  std::optional<Agreement> agreement = std::nullopt;
};

// Joins the world. From the environment: RANK, WORLD_SIZE, LOCAL_RANK, MASTER_ADDR and MASTER_PORT as
// torchrun and meshtorch-run set them, or else what MPI or Slurm set. Throws an error that names the variable
// that is missing or wrong.
MESHTORCH_API void init_process_group(const InitOptions& options = {});
// Joins the world through a store that the caller made; options.rank and options.world_size must be given.
MESHTORCH_API void init_process_group(const c10::intrusive_ptr<c10d::Store>& store,
                                      const InitOptions& options);

// Leaves the world. Tensors and meshes made in it stay readable, but what communicates throws, and another
// world can be joined.
MESHTORCH_API void destroy_process_group();

// Whether this thread or process is a rank.
MESHTORCH_API bool is_initialized();
// The number of this rank, and how many there are. Throw an error if this is no rank.
MESHTORCH_API int get_rank();
MESHTORCH_API int get_world_size();
// The rank among those of this machine, as the launcher said; the rank itself if it said nothing.
MESHTORCH_API int get_local_rank();
MESHTORCH_API std::string get_backend();

}  // namespace meshtorch
