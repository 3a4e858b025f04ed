// What one step of a plan moves between two ranks, as boxes of their local tensors. No torch.
#pragma once

#include <vector>

#include "redistribute/plan.h"

namespace meshtorch::internal {

// One box, a range for each tensor dim: where it lies in the sender's local tensor before the step,
// and in the receiver's after it. Both have the same sizes.
struct Piece {
  std::vector<Range> source;
  std::vector<Range> target;
  friend bool operator==(const Piece&, const Piece&) = default;
};

// The boxes that both hold, given the indices of each dim that each of them holds: source boxes in one's
// local tensor, target boxes in the other's.
std::vector<Piece> common_boxes(const std::vector<std::vector<Range>>& source,
                                const std::vector<std::vector<Range>>& target);

// The number of elements in these boxes.
std::int64_t element_count(const std::vector<Piece>& pieces);

// The members of the group of `coordinate`: the ranks that differ from it only on `axes`, row-major
// over the axes in the order given. The position of a member is its rank in the group.
std::vector<Shape> group_members(const Shape& mesh, const std::vector<int>& axes, const Shape& coordinate);

// The boxes that `receiver` takes from `sender`, two members of one group, in row-major order of
// the source and of the target alike, so that both sides agree on a packed message.
//  - all_gather, all_to_all: each index of the receiver comes from exactly one member: the receiver
//  itself if it holds the
//    index, else the lowest member that does.
//  - all_reduce, reduce_scatter: each member contributes its term of every index of the receiver.
//  - slice, to_partial: the rank takes from itself only.
// The pieces of all senders fill the receiver's tensor exactly (once for each term). A tensor of no
// dims is one piece.
std::vector<Piece> pieces(const Shape& shape, const Shape& mesh, const Step& step, const Shape& sender,
                          const Shape& receiver);

}  // namespace meshtorch::internal
