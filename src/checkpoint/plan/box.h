// Boxes of a tensor: what chunks of a checkpoint are, and how they meet what a rank holds. No torch.
#pragma once

#include <string>
#include <vector>

#include "core/shard.h"

namespace meshtorch::checkpoint::internal {

using namespace meshtorch::internal;

// The elements that begin at `offsets` and have `sizes`. A tensor without dims is one box of no dims.
struct Box {
  Shape offsets;
  Shape sizes;

  std::int64_t count() const;
  // "[0:4, 2:6]"
  std::string to_string() const;
  friend auto operator<=>(const Box&, const Box&) = default;
};

// What keeps the boxes from being all of a tensor, each element once, as far as counting tells: "has a chunk
// outside its shape: [0:4]"; nothing if all is well.
std::string unfit_chunks(const Shape& shape, const std::vector<Box>& boxes);

// What a rank holds, one list of ranges for each dim, as boxes; none if it holds nothing.
std::vector<Box> boxes_of(const std::vector<std::vector<Range>>& held);

// The elements of a box that a rank holds.
struct Overlap {
  Box local;                               // in the rank's local tensor
  std::vector<std::vector<Range>> inside;  // for each dim, the indices within the box, in order
};

// `held` ascends in each dim, so that what falls into a box is one box of the local tensor.
Overlap overlap_of(const std::vector<std::vector<Range>>& held, const Box& box);

}  // namespace meshtorch::checkpoint::internal
