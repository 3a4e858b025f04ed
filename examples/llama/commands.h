// The subcommands of meshtorch-llama, and where they run: ranks as threads of this process, or the processes
// that a launcher started.
#pragma once

#include <meshtorch/device_mesh.h>

#include <functional>

namespace CLI {
class App;
}

namespace llama {

struct RankOptions {
  std::int64_t dp = 0;  // 0: all ranks that tp and cp leave; one row of threads
  std::int64_t tp = 0;  // 0: all ranks that dp and cp leave; one thread
  std::int64_t cp = 1;
  std::int64_t dp_shard =
      0;  // 0: every rank of dp has whole layers; else over so many their parameters are split
  std::int64_t dp_replicate = 1;  // copies of all shards
  bool threads = false;
};

// Declares --dp, --cp, --tp and --threads; and --dp-shard and --dp-replicate for what trains.
void add_rank_options(CLI::App& command, RankOptions& options);
void add_sharding_options(CLI::App& command, RankOptions& options);

// Runs `body` on every rank of the mesh (parallelize.h), in a scope where plain tensors count as replicated.
// The ranks are those of meshtorch-run or torchrun if one of them started this process and --threads is not
// given, else as many threads. Throws the error of the first rank that failed.
void on_ranks(const RankOptions& options, const std::function<void(const meshtorch::DeviceMesh& mesh)>& body);

// Each declares the options of a subcommand, and what runs when it is chosen.

void add_train(CLI::App& app);
void add_generate(CLI::App& app);
void add_logits(CLI::App& app);
void add_inspect(CLI::App& app);

}  // namespace llama
