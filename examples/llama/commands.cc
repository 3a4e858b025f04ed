// Choosing between thread ranks and launched processes, and the shape of the mesh.
#include "commands.h"

#include <c10/util/Exception.h>
#include <meshtorch/implicit_replication.h>
#include <meshtorch/launch.h>
#include <meshtorch/process_group.h>
#include <CLI/App.hpp>

#include <algorithm>
#include <cstdlib>

#include "parallelize.h"

namespace llama {
namespace {

namespace mt = meshtorch;

bool is_launched() { return std::getenv("RANK") != nullptr && std::getenv("WORLD_SIZE") != nullptr; }

// The mesh of `world` ranks, of which dp or tp may be left open.
mt::DeviceMesh mesh_of(const RankOptions& options, std::int64_t world) {
  MeshShape shape{.dp = options.dp,
                  .cp = options.cp,
                  .tp = options.tp,
                  .dp_shard = options.dp_shard,
                  .dp_replicate = options.dp_replicate};
  const auto rest = [&](std::int64_t taken) { return std::max<std::int64_t>(world / (taken * shape.cp), 1); };
  if (shape.tp == 0) shape.tp = rest(std::max<std::int64_t>(shape.data(), 1));
  if (shape.dp == 0) shape.dp = rest(shape.tp);
  TORCH_CHECK_VALUE(shape.size() == world, "meshtorch-llama: a mesh of ", shape.to_string(),
                    " does not have the ", world, " ranks that were started\n  where: --dp",
                    shape.cp > 1 ? ", --cp" : "", " and --tp\n  do: start ", shape.size(),
                    " ranks, or give --threads");
  return make_mesh(shape);
}

void on_threads(const RankOptions& options, const std::function<void(const mt::DeviceMesh&)>& body) {
  const std::int64_t dp = options.dp_shard > 0 ? options.dp_replicate * options.dp_shard : options.dp;
  const std::int64_t world =
      std::max<std::int64_t>(dp, 1) * options.cp * std::max<std::int64_t>(options.tp, 1);
  try {
    mt::spawn(static_cast<int>(world), [&](int) {
      const mt::implicit_replication plain_is_replicated;
      body(mesh_of(options, world));
    });
  } catch (const mt::RankError& error) {
    std::rethrow_exception(error.cause());
  }
}

void on_processes(const RankOptions& options, const std::function<void(const mt::DeviceMesh&)>& body) {
  mt::init_process_group();
  const mt::implicit_replication plain_is_replicated;
  body(mesh_of(options, mt::get_world_size()));
  mt::destroy_process_group();
}

}  // namespace

void add_rank_options(CLI::App& command, RankOptions& options) {
  command
      .add_option("--tp", options.tp,
                  "ranks that share each layer: heads, hidden units and vocabulary are split")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command.add_option("--dp", options.dp, "ranks that share the batch")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command
      .add_option("--cp", options.cp, "ranks that share each sequence, inside attention too: for long ones")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20));
  command.add_flag("--threads", options.threads,
                   "run the ranks as threads of this process; the default unless a launcher started it");
}

void add_sharding_options(CLI::App& command, RankOptions& options) {
  auto* shard = command.add_option("--dp-shard", options.dp_shard,
                                   "ranks that share the batch and over which parameters, gradients and the "
                                   "optimiser's states are split, gathered layer by layer");
  shard->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))->excludes("--dp");
  command.add_option("--dp-replicate", options.dp_replicate, "copies of what --dp-shard splits")
      ->check(CLI::Range(std::int64_t{1}, std::int64_t{1} << 20))
      ->needs(shard);
}

void on_ranks(const RankOptions& options, const std::function<void(const mt::DeviceMesh& mesh)>& body) {
  if (options.threads || !is_launched()) {
    on_threads(options, body);
  } else {
    on_processes(options, body);
  }
}

}  // namespace llama
