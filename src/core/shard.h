// Shard arithmetic: which global indices a rank holds, for any placements, even, uneven or empty. No torch.
#pragma once

#include <cstdint>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/placement.h"

namespace meshtorch::internal {

using Shape = std::vector<std::int64_t>;

// A run of global indices [begin, begin + size).
struct Range {
  std::int64_t begin = 0;
  std::int64_t size = 0;
  std::int64_t end() const { return begin + size; }
  friend bool operator==(const Range&, const Range&) = default;
};

// Part `index` of [0, size) cut into `parts` as torch::chunk cuts: ceil(size / parts) each, the last ones
// short or empty.
Range chunk(std::int64_t size, std::int64_t parts, std::int64_t index);

// The pieces of `whole` (in order, as one sequence) that the rank at `index` of an axis of `extent` ranks
// keeps under `p`, a shard. Pieces that touch are joined; an empty holding is an empty vector.
std::vector<Range> split(const std::vector<Range>& whole, const Placement& p, std::int64_t extent,
                         std::int64_t index);

// The global indices of `dim` that the rank at `coordinate` holds, in the order of its local tensor. Axes
// apply from left to right. `mesh` has the extent of each axis.
std::vector<Range> held_ranges(std::int64_t size, std::int64_t dim, const Placements& placements,
                               const Shape& mesh, const Shape& coordinate);

// The same for every dim of a tensor.
MESHTORCH_FOR_PYTHON std::vector<std::vector<Range>> held_in_each_dim(const Shape& global,
                                                                      const Placements& placements,
                                                                      const Shape& mesh,
                                                                      const Shape& coordinate);

// The shape of the local tensor at `coordinate` of a tensor of the given global shape. Placements must be
// normalized.
Shape local_shape(const Shape& global, const Placements& placements, const Shape& mesh,
                  const Shape& coordinate);

}  // namespace meshtorch::internal
