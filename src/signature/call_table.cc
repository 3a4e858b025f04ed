// What the ranks of a group called, line by line.
#include "signature/call_table.h"

#include <algorithm>

namespace meshtorch::internal {

std::uint64_t last_number(const std::vector<RankCall>& calls) {
  std::uint64_t last = 0;
  for (const RankCall& call : calls) last = std::max(last, call.number);
  return last;
}

std::string table_of(const std::vector<RankCall>& calls) {
  const bool is_one_number = std::all_of(
      calls.begin(), calls.end(), [&](const RankCall& call) { return call.number == calls[0].number; });
  std::string table;
  for (const RankCall& call : calls) {
    table.append("\n  rank ").append(std::to_string(call.world_rank)).append(": ").append(call.words);
    if (!is_one_number) table.append(", as call #").append(std::to_string(call.number));
  }
  return table;
}

std::string mismatch_of(const CollectiveSignature& call, int from, std::int64_t sent, int to,
                        std::int64_t expected) {
  return std::string(to_string(call.kind())) + ": rank " + std::to_string(from) + " sends " +
         std::to_string(sent) + " " + call.splits()->unit + " to rank " + std::to_string(to) +
         ", which expects " + std::to_string(expected);
}

}  // namespace meshtorch::internal
