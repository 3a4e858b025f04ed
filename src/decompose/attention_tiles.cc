// Tiles of attention: runs of queries against runs of keys.
#include "decompose/attention_tiles.h"

#include <algorithm>

namespace meshtorch::internal {

std::vector<AttentionTile> attention_tiles(const std::vector<Range>& queries, const std::vector<Range>& keys,
                                           bool is_causal) {
  std::vector<AttentionTile> tiles;
  std::int64_t query_row = 0;
  for (const Range& q : queries) {
    std::int64_t key_row = 0;
    for (const Range& k : keys) {
      // All of these queries see the keys before the first of them.
      const std::int64_t seen_by_all =
          is_causal ? std::clamp(q.begin - k.begin, std::int64_t{0}, k.size) : k.size;
      if (seen_by_all > 0 && q.size > 0)
        tiles.push_back({{query_row, q.size}, {key_row, seen_by_all}, false, k.begin});
      // Of the others, the queries from the first of those keys on see a triangle.
      const std::int64_t skipped = std::max(k.begin + seen_by_all - q.begin, std::int64_t{0});
      if (seen_by_all < k.size && skipped < q.size)
        tiles.push_back({{query_row + skipped, q.size - skipped},
                         {key_row + seen_by_all, k.size - seen_by_all},
                         true,
                         k.begin + seen_by_all});
      key_row += k.size;
    }
    query_row += q.size;
  }
  return tiles;
}

}  // namespace meshtorch::internal
