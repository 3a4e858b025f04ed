// What travels when a tensor goes from one mesh to another: which rank sends which boxes to which. No torch.
#pragma once

#include <map>
#include <optional>

#include "redistribute/transfer.h"

namespace meshtorch::internal {

// One of the two meshes, and how the tensor lies on it.
struct CrossingSide {
  Shape mesh;                       // the extent of each axis
  std::vector<std::int64_t> ranks;  // of the world, row-major
  Placements placements;            // normalized
};

// Every rank that computes it from the same values gets the same answers. Ranks are those of the world.
//
// Each element reaches a rank that lacks it once, from one of its holders; those that hold copies take turns.
// What a rank holds on both meshes it takes from itself.
class Crossing {
 public:
  // `from` must have no pending axes. Where `to` has, only the ranks that keep a value get one.
  Crossing(const Shape& shape, const CrossingSide& from, const CrossingSide& to);

  // The ranks of both meshes, ascending.
  const std::vector<std::int64_t>& ranks() const { return ranks_; }
  // In row-major order of the source and of the target alike. The pieces of all senders fill the receiver's
  // tensor exactly, if it gets a value.
  std::vector<Piece> pieces(std::int64_t sender, std::int64_t receiver) const;
  // What a rank of `to` fills its tensor with if it gets no value: the identity of this reduction.
  std::optional<ReduceOp> filled_with(std::int64_t receiver) const;

  // The elements that leave the rank that sends most; 0 if nothing travels.
  std::int64_t most_sent() const;

 private:
  using Held = std::vector<std::vector<Range>>;
  // The ranks that hold the same part on the first mesh.
  struct Cell {
    Held held;
    std::vector<std::int64_t> holders;
  };
  struct Receiver {
    Held needed;
    std::size_t turn = 0;
    std::optional<ReduceOp> filled_with = std::nullopt;
  };
  // Which holder of a cell sends to a rank; the rank itself if it is one.
  std::int64_t sender_of(std::size_t cell, std::int64_t receiver) const;

  std::vector<std::int64_t> ranks_;
  std::vector<Cell> cells_;
  std::map<std::int64_t, std::size_t> cell_of_;
  std::map<std::int64_t, Receiver> receivers_;
};

}  // namespace meshtorch::internal
