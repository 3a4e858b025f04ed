// Shard arithmetic: index ranges under torch::chunk semantics and strided shards.
#include "core/shard.h"

#include <algorithm>
#include <numeric>

namespace meshtorch::internal {
namespace {

std::int64_t total(const std::vector<Range>& ranges) {
  return std::accumulate(ranges.begin(), ranges.end(), std::int64_t{0},
                         [](std::int64_t sum, const Range& r) { return sum + r.size; });
}

void append(std::vector<Range>& to, Range piece) {
  if (piece.size == 0) return;
  if (!to.empty() && to.back().end() == piece.begin) {
    to.back().size += piece.size;
  } else {
    to.push_back(piece);
  }
}

// The part [window.begin, window.end()) of the sequence that `ranges` spell.
void append_window(std::vector<Range>& to, const std::vector<Range>& ranges, Range window) {
  std::int64_t position = 0;
  for (const Range& r : ranges) {
    const std::int64_t begin = std::max(position, window.begin);
    const std::int64_t end = std::min(position + r.size, window.end());
    if (begin < end) append(to, {r.begin + (begin - position), end - begin});
    position += r.size;
  }
}

}  // namespace

Range chunk(std::int64_t size, std::int64_t parts, std::int64_t index) {
  const std::int64_t step = (size + parts - 1) / parts;
  const std::int64_t begin = std::min(index * step, size);
  return {begin, std::min(begin + step, size) - begin};
}

std::vector<Range> split(const std::vector<Range>& whole, const Placement& p, std::int64_t extent,
                         std::int64_t index) {
  std::vector<Range> held;
  const std::int64_t size = total(whole);
  for (std::int64_t piece = 0; piece < p.split_factor(); ++piece) {
    const Range outer = chunk(size, p.split_factor(), piece);
    const Range inner = chunk(outer.size, extent, index);
    append_window(held, whole, {outer.begin + inner.begin, inner.size});
  }
  return held;
}

std::vector<Range> held_ranges(std::int64_t size, std::int64_t dim, const Placements& placements,
                               const Shape& mesh, const Shape& coordinate) {
  std::vector<Range> held;
  append(held, {0, size});
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    if (placements[axis].is_shard(dim)) held = split(held, placements[axis], mesh[axis], coordinate[axis]);
  }
  return held;
}

std::vector<std::vector<Range>> held_in_each_dim(const Shape& global, const Placements& placements,
                                                 const Shape& mesh, const Shape& coordinate) {
  std::vector<std::vector<Range>> held;
  for (std::size_t dim = 0; dim < global.size(); ++dim)
    held.push_back(held_ranges(global[dim], static_cast<std::int64_t>(dim), placements, mesh, coordinate));
  return held;
}

Shape local_shape(const Shape& global, const Placements& placements, const Shape& mesh,
                  const Shape& coordinate) {
  Shape local = global;
  for (std::size_t dim = 0; dim < global.size(); ++dim) {
    const auto d = static_cast<std::int64_t>(dim);
    const bool is_split =
        std::any_of(placements.begin(), placements.end(), [&](const Placement& p) { return p.is_shard(d); });
    if (is_split) local[dim] = total(held_ranges(global[dim], d, placements, mesh, coordinate));
  }
  return local;
}

}  // namespace meshtorch::internal
