// Ranks as threads of this process.
#include <ATen/Parallel.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/distributed/c10d/HashStore.hpp>

#include <chrono>
#include <condition_variable>
#include <mutex>
#include <system_error>
#include <thread>

#include "meshtorch/launch.h"
#include "runtime/error_text.h"
#include "runtime/timeout.h"
#include "signature/agreement_level.h"
#include "world/rank_context.h"
#include "world/watched_spawn.h"

namespace meshtorch {
using namespace internal;
namespace {

int threads_for_each(int world_size) {
  const int cores = static_cast<int>(std::thread::hardware_concurrency());
  return std::min(at::get_num_threads(), std::max(1, cores / world_size));
}

// How many threads of ranks have come to their end.
class EndedRanks {
 public:
  // Says so at its own end.
  class Note {
   public:
    explicit Note(EndedRanks& ended) : ended_(ended) {}
    ~Note() {
      const std::scoped_lock lock(ended_.mutex_);
      ++ended_.count_;
      ended_.changed_.notify_all();
    }
    Note(const Note&) = delete;
    Note& operator=(const Note&) = delete;

   private:
    EndedRanks& ended_;
  };

  // Waits a little for it.
  bool all_have(std::size_t count) {
    constexpr std::chrono::milliseconds kPatience(100);
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kPatience, [&] { return count_ == count; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::size_t count_ = 0;
};

}  // namespace

RankError::RankError(int rank, const std::string& what, std::exception_ptr cause)
    : std::runtime_error("rank " + std::to_string(rank) + ": " + what),
      rank_(rank),
      cause_(std::move(cause)) {}

void spawn(int world_size, const std::function<void(int rank)>& fn, const SpawnOptions& options) {
  spawn_watched(world_size, fn, options, nullptr);
}

void internal::spawn_watched(int world_size, const std::function<void(int rank)>& fn,
                             const SpawnOptions& options, const std::function<void()>& watch) {
  TORCH_CHECK_VALUE(world_size >= 1, "meshtorch: spawn needs at least 1 rank, not ", world_size,
                    "\n  in: spawn\n  do: give the number of ranks");
  check_timeout(options.timeout, "spawn");
  const auto timeout = timeout_or_default(options.timeout);
  const auto threads = std::make_shared<ThreadWorld>(world_size);
  const auto store = c10::make_intrusive<c10d::HashStore>();
  const Agreement agreement = agreement_level(options.agreement);
  const int intra_op = options.intra_op_threads > 0 ? options.intra_op_threads : threads_for_each(world_size);

  std::mutex set_up;
  EndedRanks ended;
  const auto run = [&](int rank) {
    const EndedRanks::Note at_end(ended);
    try {
      {
        // After a fork the first callers find LibTorch's pool of threads half made if they come together.
        const std::scoped_lock one_at_a_time(set_up);
        at::set_num_threads(intra_op);
      }
      // LibTorch has one cache of casts a process, which any thread that leaves autocast empties: ranks would
      // differ in their graphs, by which of them was first.
      at::autocast::set_autocast_cache_enabled(false);
      set_thread_rank(std::make_shared<RankContext>(
          World{"threads", rank, world_size, rank, timeout, store, threads, {}, agreement}));
      fn(rank);
      set_thread_rank(nullptr);
      threads->finish(rank);
    } catch (...) {
      const auto error = std::current_exception();
      set_thread_rank(nullptr);
      threads->fail(rank, error, error_text(error));
    }
  };
  std::vector<std::jthread> ranks;
  ranks.reserve(static_cast<std::size_t>(world_size));
  for (int rank = 0; rank < world_size; ++rank) {
    try {
      ranks.emplace_back(run, rank);
    } catch (const std::system_error& error) {  // the ranks that run must not wait for the others
      const std::string what = c10::str(
          "meshtorch: the thread of rank ", rank, " of ", world_size, " cannot be started: ", error.what(),
          "\n  in: spawn\n  do: use fewer ranks, or allow more threads (ulimit -u)");
      threads->fail(rank, std::make_exception_ptr(std::runtime_error(what)), what);
      break;
    }
  }
  if (watch) {
    while (!ended.all_have(ranks.size())) watch();
  }
  for (std::jthread& rank : ranks) rank.join();
  if (const auto error = threads->failure())
    throw RankError(threads->failed_rank(), error_text(error), error);
}

}  // namespace meshtorch
