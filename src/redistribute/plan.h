// The redistribution planner: the cheapest collectives from one placement to another. No torch.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard.h"
#include "meshtorch/axis_cost.h"
#include "meshtorch/placement.h"

namespace meshtorch::internal {

// One redistribution. Every rank must state the same problem, costs included, to get the same plan.
struct Problem {
  Shape shape;  // global
  std::int64_t item_size = 0;
  Shape mesh;           // the extent of each axis
  Placements from, to;  // one for each axis, normalized
  std::vector<AxisCost> costs;
  friend bool operator==(const Problem&, const Problem&) = default;
};

// One collective or local act. The ranks that differ only on `axes` form a group and act together.
// What moves, and where to, is for `pieces` (transfer.h) to say.
struct Step {
  enum class Kind : std::uint8_t {
    all_gather,      // S -> R on every axis
    all_to_all,      // S or R -> S or R; an axis may keep its name and change its indices
    all_reduce,      // P(op) -> R on every axis; sums and averages together as a sum, see divisor_of
    reduce_scatter,  // P(op) -> S on every axis; likewise
    slice,           // local, R -> S; also any change of name on axes of extent 1 or of no elements
    to_partial,      // local, R -> P(op) on every axis: see keeps_value
  };
  Kind kind = Kind::slice;
  std::vector<int> axes;  // ascending; none between meshes
  Placements before, after;
  ReduceOp op = ReduceOp::sum;  // of reductions and of to_partial
  double seconds = 0;
  std::int64_t bytes_sent = 0;  // by the rank that sends most
  std::int64_t peak_bytes = 0;  // local tensors before and after, on the rank that holds most
  friend bool operator==(const Step&, const Step&) = default;
};

std::string_view to_string(Step::Kind kind);

// False for the steps that a rank does by itself.
bool is_collective(Step::Kind kind);

// After to_partial, a rank keeps its value if `op` over equal terms gives the term (avg, min, max,
// band, bor), or if it is the first of its group; every other rank fills its tensor with the
// identity of `op` (0 for sum and bxor, 1 for product).
bool keeps_value(ReduceOp op, bool first_of_group);

// What the result of a reduction is divided by: where sums and averages are reduced together, the number of
// ranks on the axes that average; else 1.
std::int64_t divisor_of(const Step& step, const Shape& mesh);

struct Plan {
  std::vector<Step> steps;
  double seconds = 0;
  std::int64_t bytes_sent = 0;
  std::int64_t peak_bytes = 0;

  // A table with one line for each step.
  std::string to_string() const;
  friend bool operator==(const Plan&, const Plan&) = default;
};

// How much work a search was: the measure of planning speed that does not depend on the machine.
struct SearchStats {
  std::size_t states = 0;           // placements whose moves were tried
  std::size_t moves = 0;            // moves priced
  std::size_t coverage_checks = 0;  // questions of who holds what that needed range arithmetic
  std::size_t splits = 0;           // holdings computed to answer them
};

// The cheapest steps from problem.from to problem.to; among equals the fewest steps, then the first
// in the order of placements. Empty if they are equal. Throws std::invalid_argument if the parts of
// the problem do not fit together.
//
// Partials of several axes are nested like shards: the reduction of the last axis comes first. The
// planner never swaps two that do not commute.
Plan plan_redistribute(const Problem& problem);
Plan plan_redistribute(const Problem& problem, SearchStats& stats);

}  // namespace meshtorch::internal
