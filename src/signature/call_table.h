// What the ranks of a group called, when they did not call the same.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "signature/collective_signature.h"

namespace meshtorch::internal {

struct RankCall {
  int world_rank;
  std::uint64_t number;  // in its group
  std::string words;
};

// "\n  rank 0: all_reduce(Float[4], sum)\n  rank 1: …", with the numbers where those differ.
std::string table_of(const std::vector<RankCall>& calls);
// The number from which all go on.
std::uint64_t last_number(const std::vector<RankCall>& calls);

// "all_to_all_single: rank 0 sends 2 rows to rank 1, which expects 1"
std::string mismatch_of(const CollectiveSignature& call, int from, std::int64_t sent, int to,
                        std::int64_t expected);

// The first mismatch of what each rank sends with what its receivers expect, empty if there is none.
// `numbers(r)` points to what member r sends to each, and then expects from each.
template <class Numbers>
std::string find_mismatch(const CollectiveSignature& call, std::span<const int> world_ranks,
                          const Numbers& numbers) {
  const std::size_t size = world_ranks.size();
  for (std::size_t from = 0; from < size; ++from) {
    for (std::size_t to = 0; to < size; ++to) {
      const std::int64_t sent = numbers(from)[to];
      const std::int64_t expected = numbers(to)[size + from];
      if (sent != expected) return mismatch_of(call, world_ranks[from], sent, world_ranks[to], expected);
    }
  }
  return {};
}

}  // namespace meshtorch::internal
