// Causal masks of split sequences as tiles of queries and keys.
#include "decompose/attention_tiles.h"

#include "ranks.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// A query at each position sees exactly the keys up to it, whatever runs the rows are in.
TEST(AttentionTiles, CoverWhatIsSeenOnce) {
  const std::vector<std::vector<Range>> holdings{{{0, 4}},         {{4, 4}}, {{2, 5}}, {{0, 2}, {6, 2}},
                                                 {{1, 1}, {3, 3}}, {},       {{7, 1}}};
  for (const auto& queries : holdings) {
    for (const auto& keys : holdings) {
      for (const bool is_causal : {false, true}) {
        std::vector<int64_t> q_at;
        std::vector<int64_t> k_at;
        for (const Range& r : queries)
          for (int64_t i = r.begin; i < r.end(); ++i) q_at.push_back(i);
        for (const Range& r : keys)
          for (int64_t i = r.begin; i < r.end(); ++i) k_at.push_back(i);
        std::map<std::pair<int64_t, int64_t>, int> seen;
        for (const AttentionTile& tile : attention_tiles(queries, keys, is_causal)) {
          EXPECT_EQ(k_at.at(static_cast<std::size_t>(tile.keys.begin)), tile.first_key);
          for (int64_t q = 0; q < tile.queries.size; ++q) {
            for (int64_t k = 0; k < tile.keys.size; ++k) {
              if (!tile.is_causal || k <= q) ++seen[{tile.queries.begin + q, tile.keys.begin + k}];
            }
          }
        }
        for (std::size_t q = 0; q < q_at.size(); ++q) {
          for (std::size_t k = 0; k < k_at.size(); ++k) {
            const bool is_visible = !is_causal || k_at[k] <= q_at[q];
            const auto found = seen.find({static_cast<int64_t>(q), static_cast<int64_t>(k)});
            EXPECT_EQ(found == seen.end() ? 0 : found->second, is_visible ? 1 : 0);
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshtorch::testing
