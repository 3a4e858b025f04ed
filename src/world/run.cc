// One entrance for programs that a launcher may or may not have started.
#include <ATen/Parallel.h>

#include <thread>

#include "meshtorch/launch.h"
#include "meshtorch/process_group.h"
#include "runtime/error_text.h"
#include "world/exit_reason.h"
#include "world/rendezvous.h"

namespace meshtorch {
using namespace internal;

void run(int world_size, const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  TORCH_CHECK_VALUE(world_size >= 0, "meshtorch: run got ", world_size,
                    " ranks\n  do: give a number of 1 or more, or 0 for as many as there are");
  const int cores = static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  const std::optional<int> by_launcher = launched_world_size();
  const int launched = by_launcher.value_or(1);
  if (launched == 1) return spawn(world_size != 0 ? world_size : by_launcher.value_or(cores), fn, options);
  TORCH_CHECK_VALUE(world_size == 0 || world_size == launched, "meshtorch: run was asked for ", world_size,
                    " ranks, and the launcher started ", launched,
                    " processes\n  do: start as many, or pass 0 to take what the launcher gives");
  if (options.intra_op_threads > 0) at::set_num_threads(options.intra_op_threads);
  init_process_group({.timeout = options.timeout, .agreement = options.agreement});
  try {
    fn(get_rank());
  } catch (...) {
    announce_exit("failed", error_text(std::current_exception()));
    if (is_initialized()) destroy_process_group();
    throw;
  }
  if (!is_initialized()) return;  // fn has left by itself
  destroy_process_group();
}

}  // namespace meshtorch
