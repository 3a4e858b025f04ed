// Axes of meshes that were cut from one mesh: which of its ranks lie along them.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

namespace meshtorch::internal {

// A digit of a position in the row-major list of ranks of the mesh that all others were cut from, its root.
struct MeshStep {
  std::int64_t size = 1;
  std::int64_t stride = 1;
  friend bool operator==(const MeshStep&, const MeshStep&) = default;
};

// One axis: its steps, the outer first.
using MeshAxis = std::vector<MeshStep>;
using MeshAxes = std::vector<MeshAxis>;

// The axes of a root of this shape.
MeshAxes root_axes(const std::vector<std::int64_t>& shape);

// The number of ranks along an axis.
std::int64_t axis_extent(const MeshAxis& axis);

// The axes as one, the first outermost.
MeshAxis joined_axis(const MeshAxes& axes);

// The axis as several of these sizes, whose product is its extent; nothing if a size would cut through a
// step.
std::optional<MeshAxes> split_axis(const MeshAxis& axis, const std::vector<std::int64_t>& sizes);

// True if every step of an axis is larger than all steps of the axes after it.
bool are_in_order(const MeshAxes& axes);

// The positions of the mesh along these axes that holds position `start`, in row-major order.
std::vector<std::int64_t> positions_along(const MeshAxes& axes, std::int64_t start);

}  // namespace meshtorch::internal
