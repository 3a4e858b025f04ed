// Joining and leaving the world of ranks.
#include "meshtorch/process_group.h"

#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <exception>

#include "agreement/shm_membership.h"
#include "backends/backend.h"
#include "backends/backend_traits.h"
#include "liveness/fault_lab.h"
#include "liveness/flight_record.h"
#include "liveness/watched_store.h"
#include "meshtorch/flight_record.h"
#include "runtime/timeout.h"
#include "signature/agreement_level.h"
#include "world/exit_reason.h"
#include "world/rank_context.h"
#include "world/rendezvous.h"
#include "world/served_store.h"
#include "world/thread_worlds.h"

namespace meshtorch {
using namespace internal;
namespace {

void join(World world) {
  TORCH_CHECK(!is_initialized(),
              "meshtorch: init_process_group was called twice on this rank\n  do: call "
              "destroy_process_group() first");
  const bool is_thread = traits_of(world.backend).ranks_are_threads;
  auto context = std::make_shared<RankContext>(std::move(world));
  if (is_thread) {
    set_thread_rank(std::move(context));
  } else {
    set_process_rank(std::move(context));
    watch_end_of_process();
    take_fault_from_environment();
  }
}

// Processes that are not all on one host talk through gloo, unless the user wants something else.
void settle_backend(World& world, bool is_named) {
  if (!traits_of(world.backend).needs_one_host || ranks_share_host(world.store, world.rank, world.size))
    return;
  TORCH_CHECK_VALUE(!is_named,
                    "meshtorch: backend shm needs all ranks on one host, as one user in one container, "
                    "and they are not\n  do: use gloo, or name no backend");
  world.backend = "gloo";
}

// Ranks of different levels would wait for each other in different places.
void check_level(const World& world) {
  if (world.store && traits_of(world.backend).has_peers && !traits_of(world.backend).ranks_are_threads)
    check_alike(world.store, world.rank, world.size, "the level of agreement", to_string(world.agreement));
}

World describe_world(const InitOptions& options) {
  World world;
  const bool are_threads = options.init_method.starts_with("threads://");
  world.backend = !options.backend.empty() ? options.backend : are_threads ? "threads" : default_backend();
  check_timeout(options.timeout, "init_process_group");
  world.timeout = timeout_or_default(options.timeout);
  world.agreement = agreement_level(options.agreement);
  check_backend(world.backend);
  return world;
}

}  // namespace

void init_process_group(const InitOptions& options) {
  World world = describe_world(options);
  Meeting meeting = rendezvous(options, world.timeout, traits_of(world.backend).needs_store);
  world.rank = meeting.rank;
  world.size = meeting.world_size;
  world.local_rank = meeting.local_rank;
  world.store = std::move(meeting.store);
  check_level(world);
  settle_backend(world, !options.backend.empty());
  if (traits_of(world.backend).ranks_are_threads)
    world.threads = join_thread_world(options.init_method, world.size, world.rank);
  join(std::move(world));
}

void init_process_group(const c10::intrusive_ptr<c10d::Store>& store, const InitOptions& options) {
  TORCH_CHECK_VALUE(
      options.rank >= 0 && options.world_size >= 1 && options.rank < options.world_size,
      "meshtorch: init_process_group with a store needs options.rank and options.world_size, got ",
      options.rank, " and ", options.world_size,
      "\n  do: give a world_size of 1 or more and a rank below it");
  TORCH_CHECK_VALUE(store || (!options.backend.empty() && !traits_of(options.backend).needs_store),
                    "meshtorch: init_process_group got a null store\n  do: make one, or name an init_method");
  World world = describe_world(options);
  world.rank = options.rank;
  world.local_rank = options.rank;
  world.size = options.world_size;
  world.store = store ? of_next_world(watched(store), world.rank, world.size) : store;
  check_level(world);
  settle_backend(world, !options.backend.empty());
  if (traits_of(world.backend).ranks_are_threads)
    world.threads = join_thread_world(options.init_method, world.size, world.rank);
  join(std::move(world));
}

void destroy_process_group() {
  const auto context = current_rank();
  if (std::uncaught_exceptions() > 0)
    announce_exit("left", "an exception was on its way when it called destroy_process_group()");
  context->leave_groups();
  if (const auto& threads = context->world().threads) {
    threads->finish(context->world().rank);
    set_thread_rank(nullptr);
  } else {
    set_process_rank(nullptr);
  }
}

bool is_initialized() { return current_rank_or_null() != nullptr; }
int get_rank() { return current_rank()->world().rank; }
int get_world_size() { return current_rank()->world().size; }
int get_local_rank() { return current_rank()->world().local_rank; }
void write_flight_record(const std::string& directory) {
  const int rank = get_rank();
  const auto record = known_flight_record_of(rank);
  TORCH_CHECK_VALUE(record, "meshtorch: rank ", rank,
                    " has no flight record: its backend keeps none\n  in: "
                    "write_flight_record\n  do: use the backend threads, shm or gloo");
  record->write_to(directory, "asked for");
}

std::string get_backend() { return current_rank()->world().backend; }

}  // namespace meshtorch
