// Tells the active debug modes that a rank is blocked on communication.
#pragma once

#include <chrono>

#include "meshtorch/debug.h"

namespace meshtorch::internal {

// The time of its life counts as time of one collective, in all modes that are active on this rank.
class CommWait {
 public:
  explicit CommWait(Collective kind) : kind_(kind), begin_(std::chrono::steady_clock::now()) {}
  ~CommWait();
  CommWait(const CommWait&) = delete;
  CommWait& operator=(const CommWait&) = delete;

 private:
  Collective kind_;
  std::chrono::steady_clock::time_point begin_;
};

}  // namespace meshtorch::internal
