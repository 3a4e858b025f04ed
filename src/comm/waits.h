// Who waits for whom: at the end of a chain of ranks that wait is the one that all of them wait for.
#pragma once

#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "comm/meeting_memory.h"

namespace meshtorch::internal {

// What is known of a rank on this host.
struct Whereabouts {
  std::vector<Wait> waits;
  std::string state;  // "its process 1234 is stopped"
};

// One line for each rank that the rank `self` waits for, in a chain or at once, from those that are `late` in
// its own call on: for whom they wait, or what they do if they wait for none. `look` says nothing of ranks
// that are not on this host.
std::string follow_waits(int self, const std::vector<int>& late,
                         const std::function<std::optional<Whereabouts>(int world_rank)>& look);

// "ranks 1, 3"
std::string list_ranks(const std::vector<int>& ranks);

}  // namespace meshtorch::internal
