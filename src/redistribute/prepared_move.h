// A redistribution as one rank does it, worked out once: what each step gives to every member of its group
// and gets from it. No torch.
#pragma once

#include <memory>
#include <vector>

#include "redistribute/plan.h"
#include "redistribute/transfer.h"

namespace meshtorch::internal {

// The members of a group stand in the order of their ranks in it. Steps that a rank does by itself have none
// but the rank.
struct PreparedStep {
  Step step;
  Shape shape;                // global
  std::vector<Shape> before;  // each member's local shape before the step
  // Boxes to and from each member; of an all-reduce, which moves whole tensors, none, and of an all-gather,
  // which gives all members the same, only those received.
  std::vector<std::vector<Piece>> sent;
  std::vector<std::vector<Piece>> received;
  std::size_t me = 0;  // this rank's place among the members
  Shape result;        // this rank's local shape after the step
  // The dim along which the members' shards, one after the other, are the result; -1 if there is none.
  std::int64_t concatenated_dim = -1;
  bool is_first = false;  // this rank is at 0 on all axes of the step
};

struct PreparedMove {
  Shape local;  // this rank's shape before
  std::shared_ptr<const Plan> plan;
  std::vector<PreparedStep> steps;

  // How much there is to keep, in boxes.
  std::size_t weight() const;
};

PreparedMove prepare_move(const Shape& shape, const Shape& mesh, const Placements& from,
                          std::shared_ptr<const Plan> plan, const Shape& coordinate);

}  // namespace meshtorch::internal
