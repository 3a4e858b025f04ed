// Finding out who this rank is and where the others are: environment, tcp:// and file:// addresses.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <optional>
#include <string>

#include "meshtorch/process_group.h"

namespace meshtorch::internal {

struct Meeting {
  int rank = 0;
  int world_size = 1;
  int local_rank = 0;
  c10::intrusive_ptr<c10d::Store> store;
};

// Reads the options and the environment, checks that they agree, and connects to the store, whose waits end
// at the time limit. With `needs_store` false nothing is connected and no address is needed. Throws an error
// that names the variable or the part of the address at fault.
Meeting rendezvous(const InitOptions& options, std::chrono::milliseconds timeout, bool needs_store);

// How many ranks the launcher that started this process has started; none if the environment tells of no
// launcher.
std::optional<int> launched_world_size();

}  // namespace meshtorch::internal
