// Arithmetic of the axes of meshes.
#include "core/mesh_axes.h"

#include <algorithm>
#include <limits>

namespace meshtorch::internal {

MeshAxes root_axes(const std::vector<std::int64_t>& shape) {
  MeshAxes axes(shape.size());
  std::int64_t stride = 1;
  for (std::size_t a = shape.size(); a-- > 0;) {
    axes[a] = {{shape[a], stride}};
    stride *= shape[a];
  }
  return axes;
}

std::int64_t axis_extent(const MeshAxis& axis) {
  std::int64_t ranks = 1;
  for (const MeshStep& step : axis) ranks *= step.size;
  return ranks;
}

MeshAxis joined_axis(const MeshAxes& axes) {
  MeshAxis all;
  for (const MeshAxis& axis : axes) {
    for (const MeshStep& step : axis) {
      if (!all.empty() && all.back().stride == step.size * step.stride) {
        all.back() = {all.back().size * step.size, step.stride};
      } else {
        all.push_back(step);
      }
    }
  }
  return all;
}

std::optional<MeshAxes> split_axis(const MeshAxis& axis, const std::vector<std::int64_t>& sizes) {
  MeshAxis left = axis;  // what the sizes before the one at hand are made of
  MeshAxes parts(sizes.size());
  const std::int64_t outside = axis.empty() ? 1 : axis.front().size * axis.front().stride;
  for (std::size_t i = sizes.size(); i-- > 0;) {
    std::int64_t wanted = sizes[i];
    while (wanted > 1) {
      if (left.empty()) return std::nullopt;
      MeshStep& inner = left.back();
      const std::int64_t taken = std::min(wanted, inner.size);
      if (taken == 0 || wanted % taken != 0 || inner.size % taken != 0) return std::nullopt;
      parts[i].insert(parts[i].begin(), {taken, inner.stride});
      wanted /= taken;
      inner = {inner.size / taken, inner.stride * taken};
      if (inner.size == 1) left.pop_back();
    }
    // An axis of one rank lies where the one before it would begin.
    if (parts[i].empty()) parts[i] = {{1, left.empty() ? outside : left.back().stride}};
  }
  return parts;
}

bool are_in_order(const MeshAxes& axes) {
  std::int64_t smallest = std::numeric_limits<std::int64_t>::max();
  for (const MeshAxis& axis : axes) {
    std::int64_t next = smallest;
    for (const MeshStep& step : axis) {
      if (step.size == 1) continue;
      if (step.stride >= smallest) return false;
      next = std::min(next, step.stride);
    }
    smallest = next;
  }
  return true;
}

std::vector<std::int64_t> positions_along(const MeshAxes& axes, std::int64_t start) {
  MeshAxis steps;
  for (const MeshAxis& axis : axes) steps.insert(steps.end(), axis.begin(), axis.end());
  for (const MeshStep& step : steps) start -= start / step.stride % step.size * step.stride;
  std::vector<std::int64_t> positions{start};
  for (const MeshStep& step : steps) {
    std::vector<std::int64_t> further;
    for (const std::int64_t position : positions) {
      for (std::int64_t i = 0; i < step.size; ++i) further.push_back(position + i * step.stride);
    }
    positions = std::move(further);
  }
  return positions;
}

}  // namespace meshtorch::internal
