// The global element index of every element of a shard, in the order of the shard. No torch.
#pragma once

#include <algorithm>

#include "core/shard.h"

namespace meshtorch::internal {

// Indices count the elements of the global tensor row by row, whatever its strides are.
class ShardIndices {
 public:
  ShardIndices(const Shape& global, const Placements& placements, const Shape& mesh, const Shape& coordinate);
  // A part of a tensor: the indices that it has of each dim, in order.
  ShardIndices(const Shape& global, std::vector<std::vector<Range>> held);

  std::int64_t count() const { return rows_ * row_size_; }

  // Calls visit(first global index, length) for the runs of consecutive indices that make up elements [begin,
  // end) of the shard.
  template <typename Visit>
  void visit_runs(std::int64_t begin, std::int64_t end, const Visit& visit) const {
    for (std::int64_t row = begin / std::max<std::int64_t>(row_size_, 1); begin < end; ++row) {
      const std::int64_t row_begin = row * row_size_;
      const std::int64_t stop = std::min(end, row_begin + row_size_);
      const std::int64_t offset = offset_of_row(row);
      std::int64_t run_begin = row_begin;
      for (const Range& run : runs_) {
        const std::int64_t run_end = run_begin + run.size;
        if (run_begin >= stop) break;
        if (begin < run_end) {
          const std::int64_t length = std::min(stop, run_end) - begin;
          visit(offset + run.begin + (begin - run_begin), length);
          begin += length;
        }
        run_begin = run_end;
      }
    }
  }

 private:
  std::int64_t offset_of_row(std::int64_t row) const;

  // The last dims, as far as they are whole, and the one before them: the global indices within a row.
  std::vector<Range> runs_;
  std::int64_t row_size_ = 1;
  // The dims before those: for each, what its held indices add to the global index.
  std::vector<Shape> outer_;
  std::int64_t rows_ = 1;
};

}  // namespace meshtorch::internal
