// Running ranks: as threads of this process, or as the processes of a launcher.
#pragma once

#include <chrono>
#include <exception>
#include <functional>
#include <optional>
#include <stdexcept>
#include <string>

#include "meshtorch/agreement.h"
#include "meshtorch/api.h"

namespace meshtorch {

// Limits of the ranks that spawn starts.
struct SpawnOptions {
  // How long a collective may take before it is an error on every rank that waits.
  std::chrono::milliseconds timeout = std::chrono::minutes(10);
  // Threads that each rank's operators may use; 0: the machine's cores divided by the ranks, and no more than
  // the caller's operators may (OMP_NUM_THREADS, torch::set_num_threads).
  int intra_op_threads = 0;
  // How much the ranks compare before data moves. Not given: what MESHTORCH_AGREEMENT says, else `on`.
  std::optional<Agreement> agreement = std::nullopt;
};

// What spawn throws: the first rank that failed, and its error.
class MESHTORCH_API RankError : public std::runtime_error {
 public:
  RankError(int rank, const std::string& what, std::exception_ptr cause);
  int rank() const { return rank_; }
  // The error as the rank threw it.
  const std::exception_ptr& cause() const { return cause_; }

 private:
  int rank_;
  std::exception_ptr cause_;
};

// Runs fn(0) … fn(world_size - 1), each in a thread that is a rank of the `threads` backend, and returns when
// all have. If one throws, the others are stopped at their next collective and RankError is thrown here.
MESHTORCH_API void spawn(int world_size, const std::function<void(int rank)>& fn,
                         const SpawnOptions& options = {});

// Runs fn(rank) on world_size ranks: as threads of this process, or, where a launcher started several
// processes (meshtorch-run, torchrun, MPI, Slurm), as this process's rank of theirs; then init_process_group
// and destroy_process_group are called around it. Throws ValueError if the launcher started another number.
// With a world_size of 0 it is the launcher's number, or one rank for each core.
MESHTORCH_API void run(int world_size, const std::function<void(int rank)>& fn,
                       const SpawnOptions& options = {});

}  // namespace meshtorch
