// Crossings: the parts of one mesh against those of the other.
#include "redistribute/crossing.h"

#include <algorithm>
#include <set>

namespace meshtorch::internal {
namespace {

Shape crossing_coordinate(std::size_t position, const Shape& mesh) {
  auto rest = static_cast<std::int64_t>(position);
  Shape coordinate(mesh.size());
  for (std::size_t axis = mesh.size(); axis-- > 0;) {
    coordinate[axis] = rest % mesh[axis];
    rest /= mesh[axis];
  }
  return coordinate;
}

// A value is spread over the pending axes from left to right; what one axis fills with is what the next
// spreads.
std::optional<ReduceOp> fill_at(const Shape& coordinate, const Placements& placements) {
  std::optional<ReduceOp> fill;
  for (std::size_t axis = 0; axis < placements.size(); ++axis) {
    const Placement& p = placements[axis];
    if (p.is_partial() && !keeps_value(p.reduce_op(), coordinate[axis] == 0)) fill = p.reduce_op();
  }
  return fill;
}

}  // namespace

Crossing::Crossing(const Shape& shape, const CrossingSide& from, const CrossingSide& to) {
  std::map<Shape, std::size_t> cells;  // by the coordinates on split axes
  for (std::size_t i = 0; i < from.ranks.size(); ++i) {
    const Shape coordinate = crossing_coordinate(i, from.mesh);
    Shape part;
    for (std::size_t axis = 0; axis < from.mesh.size(); ++axis) {
      if (from.placements[axis].is_shard()) part.push_back(coordinate[axis]);
    }
    const auto [entry, is_new] = cells.try_emplace(part, cells_.size());
    if (is_new) cells_.push_back({held_in_each_dim(shape, from.placements, from.mesh, coordinate), {}});
    cells_[entry->second].holders.push_back(from.ranks[i]);
    cell_of_[from.ranks[i]] = entry->second;
  }
  for (std::size_t i = 0; i < to.ranks.size(); ++i) {
    const Shape coordinate = crossing_coordinate(i, to.mesh);
    receivers_[to.ranks[i]] = {held_in_each_dim(shape, to.placements, to.mesh, coordinate), i,
                               fill_at(coordinate, to.placements)};
  }
  std::set<std::int64_t> both(from.ranks.begin(), from.ranks.end());
  both.insert(to.ranks.begin(), to.ranks.end());
  ranks_.assign(both.begin(), both.end());
}

std::int64_t Crossing::sender_of(std::size_t cell, std::int64_t receiver) const {
  const auto own = cell_of_.find(receiver);
  if (own != cell_of_.end() && own->second == cell) return receiver;
  const auto& holders = cells_[cell].holders;
  return holders[receivers_.at(receiver).turn % holders.size()];
}

std::vector<Piece> Crossing::pieces(std::int64_t sender, std::int64_t receiver) const {
  const auto cell = cell_of_.find(sender);
  const auto target = receivers_.find(receiver);
  if (cell == cell_of_.end() || target == receivers_.end() || target->second.filled_with) return {};
  if (sender_of(cell->second, receiver) != sender) return {};
  return common_boxes(cells_[cell->second].held, target->second.needed);
}

std::optional<ReduceOp> Crossing::filled_with(std::int64_t receiver) const {
  const auto target = receivers_.find(receiver);
  return target == receivers_.end() ? std::nullopt : target->second.filled_with;
}

std::int64_t Crossing::most_sent() const {
  std::map<std::int64_t, std::int64_t> sent;
  for (const auto& [rank, receiver] : receivers_) {
    if (receiver.filled_with) continue;
    for (std::size_t cell = 0; cell < cells_.size(); ++cell) {
      const std::int64_t sender = sender_of(cell, rank);
      if (sender != rank) sent[sender] += element_count(common_boxes(cells_[cell].held, receiver.needed));
    }
  }
  std::int64_t most = 0;
  for (const auto& [rank, elements] : sent) most = std::max(most, elements);
  return most;
}

}  // namespace meshtorch::internal
