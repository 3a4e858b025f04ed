// The store at an address, which rank 0 serves or a launcher.
#pragma once

#include <torch/csrc/distributed/c10d/Store.hpp>

#include <chrono>
#include <string>

namespace meshtorch::internal {

// Where the ranks meet, and what said so.
struct StoreAddress {
  std::string host;
  int port = 0;
  const char* source = "";
};

// A connection to the store at the address. A rank that serves it does so until its process ends: ranks that
// leave a world and join the next there must not meet the end of the store of the last.
c10::intrusive_ptr<c10d::Store> connect_to_store(const StoreAddress& address, int rank, bool serves,
                                                 std::chrono::milliseconds timeout);

// The store as the ranks of one world see it: the worlds that ranks join at one store, one after the other,
// have keys of their own.
c10::intrusive_ptr<c10d::Store> of_next_world(const c10::intrusive_ptr<c10d::Store>& store, int rank,
                                              int world_size);

}  // namespace meshtorch::internal
