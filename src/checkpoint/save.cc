// Saving a state, at once or in the background.
#include <c10/util/Exception.h>

#include <chrono>

#include "checkpoint/draft.h"
#include "checkpoint/latest_save.h"

namespace meshtorch::checkpoint {
using namespace internal;
namespace {

// The latest background save of this rank: the end of its thread waits for it.
struct LatestSave {
  std::shared_future<void> done;
  std::shared_ptr<std::atomic<bool>> is_reported;

  ~LatestSave() {
    try {
      finish();
    } catch (const std::exception& error) {
      TORCH_WARN("a checkpoint that nobody waited for was not saved: ", error.what());
    }
  }
  void finish() {
    if (!done.valid()) return;
    const std::shared_future<void> finished = std::exchange(done, {});
    finished.wait();
    if (!is_reported->exchange(true)) finished.get();
  }
};

LatestSave& latest_save() {
  thread_local LatestSave latest;
  return latest;
}

}  // namespace

void internal::finish_latest_save() { latest_save().finish(); }

void save(const std::string& directory, const State& state) {
  finish_latest_save();
  Draft(directory, state).write(gather_by_collective());
}

AsyncSave save_async(const std::string& directory, const State& state) {
  finish_latest_save();
  const auto draft = std::make_shared<Draft>(directory, state);
  draft->snapshot();
  LatestSave& latest = latest_save();
  latest.is_reported = std::make_shared<std::atomic<bool>>(false);
  latest.done = std::async(std::launch::async,
                           [draft, gather = gather_by_store(draft->meeting())] { draft->write(gather); });
  return AsyncSave(latest.done, latest.is_reported);
}

void AsyncSave::wait() {
  done_.wait();
  *is_reported_ = true;
  done_.get();
}

bool AsyncSave::is_done() const {
  return done_.wait_for(std::chrono::seconds(0)) == std::future_status::ready;
}

}  // namespace meshtorch::checkpoint
