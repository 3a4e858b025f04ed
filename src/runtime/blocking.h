// What happens around a wait for other ranks: a language that embeds the library lets its lock go, so that
// the ranks that are waited for can run.
#pragma once

#include <mutex>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// `begin` runs before a wait and gives a token, `end` after it with that token.
struct BlockingHooks {
  void* (*begin)() = nullptr;
  void (*end)(void* token) = nullptr;
};

// For all ranks of the process, once, before there are any.
MESHTORCH_FOR_PYTHON void set_blocking_hooks(const BlockingHooks& hooks);

// Alive while the thread waits for another rank. No lock may be taken before it and released after it,
// unless by lock_across_ranks.
class Blocking {
 public:
  Blocking();
  ~Blocking();
  Blocking(const Blocking&) = delete;
  Blocking& operator=(const Blocking&) = delete;

 private:
  void* token_ = nullptr;
};

// Locks what threads of one rank may hold while they wait for other ranks. Whoever waits for the lock lets
// the embedding language's lock go meanwhile, which its owner may need.
template <class Mutex>
std::unique_lock<Mutex> lock_across_ranks(Mutex& mutex) {
  std::unique_lock lock(mutex, std::try_to_lock);
  if (!lock.owns_lock()) {
    const Blocking blocking;
    lock.lock();
  }
  return lock;
}

}  // namespace meshtorch::internal
