// How queries, keys and values lie when attention runs on a split sequence, and which positions ranks hold.
#pragma once

#include <vector>

#include "core/shard.h"
#include "decompose/sequence_attention.h"
#include "decompose/sequence_order.h"
#include "mesh/mesh_impl.h"

namespace meshtorch::internal {

struct SequenceSplit {
  MeshImpl* mesh = nullptr;
  const Layout* query = nullptr;
  const Layout* key = nullptr;      // of values too
  std::vector<int> key_axes{};      // over which the keys are split along the sequence
  std::vector<Range> query_rows{};  // the positions that this rank's queries have
  // The positions of the keys of each rank of the group along key_axes; of this rank alone if there are none.
  std::vector<std::vector<Range>> key_rows{};

  SequenceOrder order{};

  // This rank's number in that group.
  std::size_t self() const;
  std::vector<std::int64_t> key_sizes() const;

  // How queries and keys lie when heads are split instead; null if the heads cannot be.
  const Layout* query_by_heads = nullptr;
  const Layout* key_by_heads = nullptr;
};

std::optional<SequenceSplit> sequence_split_of(const AttentionCall& call);

// How a mask lies beside queries in this layout: whole along the keys.
const Layout* mask_layout(const at::Tensor& mask, const Layout& query);

}  // namespace meshtorch::internal
