// Who writes what: every box of every tensor once, balanced over the ranks that hold it. No torch.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/plan/box.h"

namespace meshtorch::checkpoint::internal {

// What one rank holds of one tensor.
struct Holding {
  std::string name;
  std::string dtype;
  Shape shape;
  std::vector<Box> boxes;
  friend bool operator==(const Holding&, const Holding&) = default;
};

struct OwnedBox {
  Box box;
  int owner = 0;
  friend bool operator==(const OwnedBox&, const OwnedBox&) = default;
};

struct AssignedTensor {
  std::string dtype;
  Shape shape;
  std::vector<OwnedBox> boxes;
};

using Assignment = std::map<std::string, AssignedTensor>;

// The same on every rank that has the holdings of all. Throws std::invalid_argument if the ranks disagree on
// a tensor, or do not hold all of it together.
Assignment assign(const std::vector<std::vector<Holding>>& of_ranks);

}  // namespace meshtorch::checkpoint::internal
