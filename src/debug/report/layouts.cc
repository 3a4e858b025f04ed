// Layouts as the page's data. What a rank holds is worked out here, so that the page only looks it up.
#include "debug/report/layouts.h"

namespace meshtorch::report::internal {
namespace {

using Json = nlohmann::ordered_json;

// Larger tables would make the page heavy: the page then says sizes, and no indices.
constexpr std::int64_t kMaxNumbers = 1 << 14;

Json ranges_json(const std::vector<Range>& ranges) {
  Json numbers = Json::array();
  for (const Range& range : ranges) {
    numbers.push_back(range.begin);
    numbers.push_back(range.end());
  }
  return numbers;
}

// The coordinate whose `axes` have the number `index` in row-major order; 0 on the others.
Shape coordinate_at(std::int64_t index, const std::vector<std::size_t>& axes, const Shape& mesh) {
  Shape coordinate(mesh.size(), 0);
  for (auto axis = axes.rbegin(); axis != axes.rend(); ++axis) {
    coordinate[*axis] = index % mesh[*axis];
    index /= mesh[*axis];
  }
  return coordinate;
}

Json dim_json(std::int64_t size, std::int64_t dim, const Placements& placements, const Shape& mesh) {
  std::vector<std::size_t> axes;
  std::int64_t combinations = 1, numbers = 2;
  for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
    if (!placements[axis].is_shard(dim)) continue;
    axes.push_back(axis);
    combinations *= mesh[axis];
    numbers *= mesh[axis] * placements[axis].split_factor();
  }
  if (axes.empty()) return nullptr;
  if (numbers > kMaxNumbers) return {{"axes", axes}};
  Json held = Json::array();
  for (std::int64_t i = 0; i < combinations; ++i)
    held.push_back(ranges_json(held_ranges(size, dim, placements, mesh, coordinate_at(i, axes, mesh))));
  return {{"axes", axes}, {"held", std::move(held)}};
}

Json layout_json(const Shape& shape, const std::optional<AxisPlacements>& given, const Shape& mesh) {
  Json layout{{"shape", shape}};
  Json dims = Json::array();
  Placements placements(mesh.size());
  if (given) {
    Json words = Json::array();
    for (std::size_t axis = 0; axis < mesh.size(); ++axis) {
      const std::optional<Placement>& placement = (*given)[axis];
      words.push_back(placement ? placement->to_string() : "-");
      if (placement) placements[axis] = *placement;
    }
    layout["placements"] = std::move(words);
  }
  for (std::size_t dim = 0; dim < shape.size(); ++dim)
    dims.push_back(dim_json(shape[dim], static_cast<std::int64_t>(dim), placements, mesh));
  layout["dims"] = std::move(dims);
  return layout;
}

}  // namespace

std::size_t LayoutList::add(const Shape& shape, const std::optional<AxisPlacements>& placements) {
  const Key key(shape, placements);
  const auto [found, is_new] = numbers_.emplace(key, layouts_.size());
  if (is_new) layouts_.push_back(key);
  return found->second;
}

nlohmann::ordered_json LayoutList::json() const {
  Json list = Json::array();
  for (const auto& [shape, placements] : layouts_) list.push_back(layout_json(shape, placements, mesh_));
  return list;
}

}  // namespace meshtorch::report::internal
