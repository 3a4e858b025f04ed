// A redistribution as one rank does it.
#include "redistribute/prepared_move.h"

#include <algorithm>

namespace meshtorch::internal {
namespace {

std::int64_t concatenated_dim_of(const PreparedStep& prepared) {
  std::int64_t dim = -1;
  for (const int axis : prepared.step.axes) {
    const Placement& p = prepared.step.before[static_cast<std::size_t>(axis)];
    if (dim >= 0 && p.dim() != dim) return -1;
    dim = p.dim();
  }
  const auto d = static_cast<std::size_t>(dim);
  std::int64_t offset = 0;
  for (std::size_t member = 0; member < prepared.received.size(); ++member) {
    const std::vector<Piece>& parts = prepared.received[member];
    if (parts.empty()) continue;
    const Range& target = parts[0].target[d];
    if (parts.size() > 1 || target.begin != offset || target.size != prepared.before[member][d]) return -1;
    offset = target.end();
  }
  return offset == prepared.result[d] ? dim : -1;
}

PreparedStep prepare_step(const Step& step, const Shape& shape, const Shape& mesh, const Shape& coordinate) {
  PreparedStep prepared{.step = step,
                        .shape = shape,
                        .before = {},
                        .sent = {},
                        .received = {},
                        .result = local_shape(shape, step.after, mesh, coordinate)};
  prepared.is_first = std::ranges::all_of(
      step.axes, [&](int axis) { return coordinate[static_cast<std::size_t>(axis)] == 0; });
  if (step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::to_partial) return prepared;
  const auto members =
      is_collective(step.kind) ? group_members(mesh, step.axes, coordinate) : std::vector<Shape>{coordinate};
  for (const Shape& member : members) {
    prepared.before.push_back(local_shape(shape, step.before, mesh, member));
    prepared.received.push_back(pieces(shape, mesh, step, member, coordinate));
    if (step.kind != Step::Kind::all_gather)
      prepared.sent.push_back(pieces(shape, mesh, step, coordinate, member));
  }
  prepared.me = static_cast<std::size_t>(std::ranges::find(members, coordinate) - members.begin());
  if (step.kind == Step::Kind::all_gather) prepared.concatenated_dim = concatenated_dim_of(prepared);
  return prepared;
}

}  // namespace

std::size_t PreparedMove::weight() const {
  std::size_t boxes = 1;
  for (const PreparedStep& step : steps) {
    for (const auto* side : {&step.sent, &step.received}) {
      for (const std::vector<Piece>& of_member : *side) boxes += 1 + of_member.size();
    }
  }
  return boxes;
}

PreparedMove prepare_move(const Shape& shape, const Shape& mesh, const Placements& from,
                          std::shared_ptr<const Plan> plan, const Shape& coordinate) {
  PreparedMove move{local_shape(shape, from, mesh, coordinate), std::move(plan), {}};
  for (const Step& step : move.plan->steps) move.steps.push_back(prepare_step(step, shape, mesh, coordinate));
  return move;
}

}  // namespace meshtorch::internal
