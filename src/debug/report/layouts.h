// How tensors lie on a mesh, as the page's data: each different layout once. No torch.
#pragma once

#include <map>
#include <nlohmann/json.hpp>
#include <optional>
#include <tuple>
#include <vector>

#include "core/shard.h"

namespace meshtorch::report::internal {

using namespace meshtorch::internal;

// One for each axis of the page's mesh; nothing where the tensor's own mesh does not have that axis.
using AxisPlacements = std::vector<std::optional<Placement>>;

class LayoutList {
 public:
  explicit LayoutList(Shape mesh) : mesh_(std::move(mesh)) {}

  // The number of the layout. Without placements the tensor is not distributed.
  std::size_t add(const Shape& shape, const std::optional<AxisPlacements>& placements);

  // For each layout its shape, its placements ("R", "S(0)", …, "-" for an axis that it does not lie on), and
  // for each dim null if it is whole, else the axes that split it and what is held at each combination of
  // their coordinates, in row-major order: [begin, end, begin, end, …].
  nlohmann::ordered_json json() const;

 private:
  using Key = std::tuple<Shape, std::optional<AxisPlacements>>;
  Shape mesh_;
  std::vector<Key> layouts_;
  std::map<Key, std::size_t> numbers_;
};

}  // namespace meshtorch::report::internal
