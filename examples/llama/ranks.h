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
  std::int64_t dp_shard =
      0;  // 0: every rank of dp has whole layers; else over so many their parameters are split
  std::int64_t dp_replicate = 1;  // copies of all shards
  bool threads = false;
};

// Declares --dp, --tp and --threads; and --dp-shard and --dp-replicate for what trains.
void add_rank_options(CLI::App& command, RankOptions& options);
void add_sharding_options(CLI::App& command, RankOptions& options);

// Runs `body` on every rank of a mesh (dp, tp), or (dp_replicate, dp_shard, tp) if that is given, in a scope
// where plain tensors count as replicated. The ranks are those of meshtorch-run or torchrun if one of them
// started this process and --threads is not given, else dp x tp threads. Throws the error of the first rank
// that failed.
void on_ranks(const RankOptions& options, const std::function<void(const meshtorch::DeviceMesh& mesh)>& body);

}  // namespace llama
