// Which keys which queries see, as tiles that one call of a kernel covers.
#pragma once

#include <vector>

#include "core/shard.h"

namespace meshtorch::internal {

// Rows of a local tensor of queries and one of keys. If it is causal, the first query and the first key have
// the same position in the sequence.
struct AttentionTile {
  Range queries;
  Range keys;
  bool is_causal = false;
  std::int64_t first_key = 0;  // the position in the sequence of the first key
  friend bool operator==(const AttentionTile&, const AttentionTile&) = default;
};

// The tiles between rows that hold these positions of the sequence, in the order of the local tensors. If
// `is_causal`, a query sees the keys up to its own position, else all.
std::vector<AttentionTile> attention_tiles(const std::vector<Range>& queries, const std::vector<Range>& keys,
                                           bool is_causal);

}  // namespace meshtorch::internal
