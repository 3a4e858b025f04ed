// The time in which a rank is blocked on communication, for who counts it.
#pragma once

#include <atomic>
#include <chrono>

#include "meshtorch/group.h"

namespace meshtorch::internal {

// Called with the seconds that the calling rank waited in a collective; null if nobody counts them.
inline std::atomic<void (*)(Collective kind, double seconds)> on_comm_wait = nullptr;

// The time of its life counts as time of one collective.
class CommWait {
 public:
  explicit CommWait(Collective kind) : kind_(kind), begin_(std::chrono::steady_clock::now()) {}
  ~CommWait() {
    const auto observer = on_comm_wait.load(std::memory_order_relaxed);
    if (observer == nullptr) return;
    const std::chrono::duration<double> spent = std::chrono::steady_clock::now() - begin_;
    observer(kind_, spent.count());
  }
  CommWait(const CommWait&) = delete;
  CommWait& operator=(const CommWait&) = delete;

 private:
  Collective kind_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace meshtorch::internal
