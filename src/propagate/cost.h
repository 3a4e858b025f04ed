// What it costs to change how a tensor lies on one mesh axis. Estimates, the same on every rank.
#pragma once

#include <cstdint>

#include "core/shard.h"
#include "meshtorch/axis_cost.h"
#include "meshtorch/placement.h"

namespace meshtorch::internal {

// A tensor as the axis meets it: its shape there, after the axes to the left have split it.
struct AxisTensor {
  Shape shape;
  std::int64_t item_size = 4;

  double bytes() const;
  // Of the largest part under a placement, which sets the pace.
  double largest_part_bytes(const Placement& placement, std::int64_t extent) const;
};

struct MoveCost {
  double seconds = 0;
  bool communicates = false;

  friend MoveCost operator+(MoveCost a, MoveCost b) {
    return {a.seconds + b.seconds, a.communicates || b.communicates};
  }
};

// Of one tensor, from one placement to another on an axis of `extent` ranks.
MoveCost move_cost(const Placement& from, const Placement& to, const AxisTensor& tensor, std::int64_t extent,
                   const AxisCost& axis);

// Of bringing the parts of a dim into another order of axes, where the placement stays the same.
MoveCost reorder_cost(const Placement& placement, const AxisTensor& tensor, std::int64_t extent,
                      const AxisCost& axis);

}  // namespace meshtorch::internal
