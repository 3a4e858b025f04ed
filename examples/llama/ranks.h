// Where a subcommand runs: ranks as threads of this process, or the processes that a launcher started.
#pragma once

#include <meshtorch/device_mesh.h>

#include <functional>

namespace CLI {
class App;
}

namespace llama {

struct RankOptions {
  std::int64_t dp = 0;  // 0: all ranks that tp leaves; one row of threads
  std::int64_t tp = 0;  // 0: all ranks that dp leaves; one thread
  bool threads = false;
};

// Declares --dp, --tp and --threads.
void add_rank_options(CLI::App& command, RankOptions& options);

// Runs `body` on every rank of a mesh (dp, tp), in a scope where plain tensors count as replicated. The ranks
// are those of meshtorch-run or torchrun if one of them started this process and --threads is not given, else
// dp x tp threads. Throws the error of the first rank that failed.
void on_ranks(const RankOptions& options, const std::function<void(const meshtorch::DeviceMesh& mesh)>& body);

}  // namespace llama
