// The seed of a rank and the number of random calls it has made. No torch.
#pragma once

#include <cstdint>
#include <mutex>

#include "core/philox.h"

namespace meshtorch::internal {

// Where the numbers of a rank start if the program gives no seed.
inline constexpr std::uint64_t kFirstSeed = 67280421310721;

class RandomSource {
 public:
  explicit RandomSource(RandomCall next) : next_(next) {}

  // The call to draw from, which is never given twice.
  RandomCall take() {
    const std::scoped_lock lock(mutex_);
    RandomCall call = next_;
    ++next_.number;
    return call;
  }
  RandomCall peek() const {
    const std::scoped_lock lock(mutex_);
    return next_;
  }
  void set(RandomCall next) {
    const std::scoped_lock lock(mutex_);
    next_ = next;
  }

 private:
  mutable std::mutex mutex_;  // autograd threads draw too
  RandomCall next_;
};

}  // namespace meshtorch::internal
