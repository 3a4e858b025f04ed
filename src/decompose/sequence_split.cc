// How queries, keys and values lie when attention runs on a split sequence.
#include "decompose/sequence_split.h"

#include "redistribute/transfer.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kBatch = 0, kHeads = 1, kRows = 2;

// Broadcast along any dim but that of the keys.
bool has_known_mask(const AttentionCall& call) {
  if (!call.mask || !call.mask->defined()) return true;
  const auto mask = call.mask->sizes();
  if (call.is_causal || (mask.size() != 2 && mask.size() != 4)) return false;
  const auto fits = [](std::int64_t size, std::int64_t whole) { return size == whole || size == 1; };
  const auto query = call.query.sizes();
  const bool fits_before = mask.size() == 2 || (fits(mask[0], query[0]) && fits(mask[1], query[1]));
  return fits_before && fits(mask[mask.size() - 2], query[2]) && mask.back() == call.key.size(kRows);
}

bool has_known_form(const AttentionCall& call) {
  if (call.query.dim() != 4 || call.key.dim() != 4 || call.value.dim() != 4 || call.dropout_p != 0)
    return false;
  const auto query = call.query.sizes();
  const auto key = call.key.sizes();
  const auto value = call.value.sizes();
  return query[0] == key[0] && key[0] == value[0] && key[1] == value[1] && key[2] == value[2] &&
         query[3] == key[3] && key[1] > 0 && query[1] % key[1] == 0 && key[2] > 0 && has_known_mask(call);
}

// Whether heads of queries and of keys stay together when an axis splits both.
bool heads_fit(const AttentionCall& call, std::int64_t parts) {
  return call.key.size(kHeads) == call.query.size(kHeads) || call.key.size(kHeads) % parts == 0;
}

std::vector<Range> rows_of(std::int64_t size, const Layout& layout, const Shape& coordinate) {
  return held_ranges(size, kRows, layout.placements, layout.mesh->shape(), coordinate);
}

// With the axes that split the sequence splitting what the others leave of the heads.
void set_layouts_by_heads(const AttentionCall& call, SequenceSplit& split) {
  Placements query = split.query->placements;
  Placements key = split.key->placements;
  std::int64_t parts = 1;
  std::int64_t sequence_axes = 0;
  for (std::size_t axis = 0; axis < query.size(); ++axis) {
    if (query[axis].is_shard(kHeads) || query[axis].is_shard(kRows)) parts *= split.mesh->shape()[axis];
    if (query[axis].is_shard(kHeads) && query[axis].split_factor() > 1) return;
    if (query[axis].is_shard(kRows) != key[axis].is_shard(kRows)) return;
    sequence_axes += query[axis].is_shard(kRows) ? 1 : 0;
  }
  if (sequence_axes != 1 || call.key.size(kHeads) % parts != 0) return;
  for (std::size_t axis = 0; axis < query.size(); ++axis) {
    if (!query[axis].is_shard(kRows)) continue;
    // The axes to the right have split the heads before.
    std::int64_t split_before = 1;
    for (std::size_t right = axis + 1; right < query.size(); ++right) {
      if (query[right].is_shard(kHeads)) split_before *= split.mesh->shape()[right];
    }
    query[axis] = key[axis] = StridedShard(kHeads, split_before);
  }
  split.query_by_heads = split.mesh->layout(query);
  split.key_by_heads = split.mesh->layout(key);
}

}  // namespace

std::size_t SequenceSplit::self() const {
  return key_axes.empty() ? 0 : static_cast<std::size_t>(mesh->group(key_axes).rank());
}

std::vector<std::int64_t> SequenceSplit::key_sizes() const {
  std::vector<std::int64_t> sizes;
  for (const std::vector<Range>& rows : key_rows) {
    sizes.push_back(0);
    for (const Range& run : rows) sizes.back() += run.size;
  }
  return sizes;
}

std::optional<SequenceSplit> sequence_split_of(const AttentionCall& call) {
  const DTensorMeta* query = meta_of(call.query);
  const DTensorMeta* key = meta_of(call.key);
  const DTensorMeta* value = meta_of(call.value);
  if (query == nullptr || key == nullptr || value == nullptr || !has_known_form(call)) return std::nullopt;
  SequenceSplit split{.mesh = query->mesh.get()};
  Placements for_query;
  Placements for_key;
  std::int64_t head_parts = 1;
  bool is_split = false;
  for (std::size_t axis = 0; axis < split.mesh->shape().size(); ++axis) {
    const std::int64_t extent = split.mesh->shape()[axis];
    const Placement& p = query->layout->placements[axis];
    const Placement& k = key->layout->placements[axis];
    if (p.is_shard(kRows) && extent > 1) {
      is_split = true;
      for_query.push_back(p);
      for_key.push_back(k.is_shard(kRows) ? k : Replicate());
      if (k.is_shard(kRows)) split.key_axes.push_back(static_cast<int>(axis));
      continue;
    }
    const bool by_heads = p.is_shard(kHeads) && heads_fit(call, head_parts * extent);
    if (by_heads) head_parts *= extent;
    const Placement both = p.is_shard(kBatch) || by_heads ? p : Replicate();
    for_query.push_back(both);
    for_key.push_back(both);
  }
  if (!is_split) return std::nullopt;
  split.query = split.mesh->layout(for_query);
  split.key = split.mesh->layout(for_key);
  const Shape here = coordinate_in(*split.mesh);
  // Positions matter to a causal mask only; another mask is in the order of the tensors.
  if (call.is_causal) split.order = OrderScope::current();
  const std::int64_t queries = call.query.size(kRows);
  const std::int64_t keys = call.key.size(kRows);
  split.query_rows = split.order.positions(rows_of(queries, *split.query, here), queries);
  for (const Shape& member : group_members(split.mesh->shape(), split.key_axes, here))
    split.key_rows.push_back(split.order.positions(rows_of(keys, *split.key, member), keys));
  set_layouts_by_heads(call, split);
  return split;
}

const Layout* mask_layout(const at::Tensor& mask, const Layout& query) {
  const std::int64_t before = 4 - mask.dim();  // dims of the queries that the mask has not
  Placements placements;
  for (const Placement& p : query.placements) {
    const std::int64_t dim = p.is_shard() ? p.dim() - before : -1;
    const bool is_split = dim >= 0 && mask.size(dim) > 1;
    placements.push_back(is_split ? StridedShard(dim, p.split_factor()) : Replicate());
  }
  return query.mesh->layout(placements);
}

}  // namespace meshtorch::internal
