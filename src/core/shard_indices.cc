// The global element index of every element of a shard.
#include "core/shard_indices.h"

namespace meshtorch::internal {

ShardIndices::ShardIndices(const Shape& global, const Placements& placements, const Shape& mesh,
                           const Shape& coordinate)
    : ShardIndices(global, held_in_each_dim(global, placements, mesh, coordinate)) {}

ShardIndices::ShardIndices(const Shape& global, std::vector<std::vector<Range>> held_of_dims) {
  runs_ = {{0, 1}};
  std::int64_t stride = 1;  // of the dim in hand, in elements of the global tensor
  for (std::size_t dim = global.size(); dim-- > 0;) {
    std::vector<Range>& held = held_of_dims[dim];
    const bool row_is_whole = outer_.empty() && runs_ == std::vector<Range>{{0, stride}};
    if (row_is_whole) {
      for (Range& range : held) range = {range.begin * stride, range.size * stride};
      runs_ = std::move(held);
      row_size_ = 0;
      for (const Range& range : runs_) row_size_ += range.size;
    } else {
      Shape& added = outer_.emplace_back();
      for (const Range& range : held) {
        for (std::int64_t index = range.begin; index < range.end(); ++index) added.push_back(index * stride);
      }
      rows_ *= static_cast<std::int64_t>(added.size());
    }
    stride *= global[dim];
  }
  std::erase_if(runs_, [](const Range& range) { return range.size == 0; });
}

// Outer dims are listed from the inside out.
std::int64_t ShardIndices::offset_of_row(std::int64_t row) const {
  std::int64_t offset = 0;
  for (const Shape& added : outer_) {
    const auto size = static_cast<std::int64_t>(added.size());
    offset += added[static_cast<std::size_t>(row % size)];
    row /= size;
  }
  return offset;
}

}  // namespace meshtorch::internal
