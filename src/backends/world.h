// What the backends know of the world of one rank.
#pragma once

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>
#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "agreement/thread_world.h"
#include "meshtorch/agreement.h"

namespace meshtorch::internal {

// Where and how a world's groups are made.
struct World {
  std::string backend;
  int rank = 0;
  int size = 1;
  int local_rank = 0;
  std::chrono::milliseconds timeout{};
  c10::intrusive_ptr<c10d::Store> store;
  std::shared_ptr<ThreadWorld> threads;  // of the `threads` backend
  // Makes the group of these ranks, this one among them, in a world that something else made, such as
  // Python's torch.distributed. Empty: groups are made by `backend`.
  std::function<c10::intrusive_ptr<c10d::ProcessGroup>(const std::vector<std::int64_t>& ranks)> make_group =
      {};
  Agreement agreement = Agreement::on;
};

}  // namespace meshtorch::internal
