// The tensors that the ranks write together, and what this rank holds of each.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "checkpoint/module_tensors.h"
#include "checkpoint/plan/assign.h"
#include "checkpoint/section.h"

namespace meshtorch::checkpoint::internal {

class HeldTensors {
 public:
  // Reduces those that are pending reductions: to be called by all ranks.
  explicit HeldTensors(const NamedTensors& tensors);

  // What this rank holds, as it travels.
  Json to_json() const;
  // The elements of a box that this rank holds, in the shape of the box.
  at::Tensor part(const std::string& name, const Box& box) const;

 private:
  struct Held {
    std::string dtype;
    Shape shape;
    Shards shards;
  };
  std::vector<std::string> names_;
  std::map<std::string, Held> held_;
};

// The inverse of HeldTensors::to_json.
std::vector<Holding> holdings_from(const Json& json);

}  // namespace meshtorch::checkpoint::internal
