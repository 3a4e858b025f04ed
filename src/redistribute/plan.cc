// Plans: checks the problem, sets aside what needs no search, and adds up what the steps cost.
#include "redistribute/plan.h"

#include <algorithm>
#include <cmath>
#include <stdexcept>

#include "redistribute/search.h"

namespace meshtorch::internal {
namespace {

[[noreturn]] void reject(const std::string& what, const Problem& problem, const std::string& advice) {
  throw std::invalid_argument("meshtorch: " + what + "\n  redistribute " + to_string(problem.from) + " -> " +
                              to_string(problem.to) + " over a mesh of " +
                              std::to_string(problem.mesh.size()) + " axes\n  do: " + advice);
}

void check_placement(const Problem& problem, const Placement& p) {
  const auto rank = static_cast<std::int64_t>(problem.shape.size());
  if (!p.is_shard() || (p.dim() >= 0 && p.dim() < rank)) return;
  reject(p.to_string() + " does not name a dim of a tensor of " + std::to_string(rank) + " dims.", problem,
         "normalize the placements, and split a dim from 0 to " + std::to_string(rank - 1));
}

void check(const Problem& problem) {
  const std::size_t axes = problem.mesh.size();
  for (std::size_t size : {problem.from.size(), problem.to.size(), problem.costs.size()}) {
    if (size == axes) continue;
    reject(
        "a mesh of " + std::to_string(axes) + " axes got " + std::to_string(size) + " placements or costs.",
        problem, "give one placement and one cost for each axis");
  }
  if (axes > kMaxAxes)
    reject("a mesh has at most " + std::to_string(kMaxAxes) + " axes, not " + std::to_string(axes) + ".",
           problem, "flatten some axes");
  for (const Placements* ends : {&problem.from, &problem.to}) {
    for (const Placement& p : *ends) check_placement(problem, p);
  }
  for (const AxisCost& cost : problem.costs) {
    const bool is_good = std::isfinite(cost.latency_s) && std::isfinite(cost.seconds_per_byte) &&
                         cost.latency_s >= 0 && cost.seconds_per_byte >= 0;
    if (!is_good) reject("the cost of an axis is negative or not finite.", problem, "give seconds from 0 up");
  }
}

// The problem without the axes of extent 1, on which every placement means the same.
Problem without_trivial_axes(const Problem& problem, std::vector<int>& kept) {
  Problem core{problem.shape, problem.item_size, {}, {}, {}, {}};
  for (std::size_t axis = 0; axis < problem.mesh.size(); ++axis) {
    if (problem.mesh[axis] == 1) continue;
    kept.push_back(static_cast<int>(axis));
    core.mesh.push_back(problem.mesh[axis]);
    core.from.push_back(problem.from[axis]);
    core.to.push_back(problem.to[axis]);
    core.costs.push_back(problem.costs[axis]);
  }
  return core;
}

// A step of the core problem on the whole mesh, whose trivial axes already have the placements of
// `to`.
Step on_whole_mesh(Step step, const std::vector<int>& kept, const Placements& to) {
  Placements before = to;
  Placements after = to;
  for (std::size_t i = 0; i < kept.size(); ++i) {
    before[static_cast<std::size_t>(kept[i])] = step.before[i];
    after[static_cast<std::size_t>(kept[i])] = step.after[i];
  }
  for (int& axis : step.axes) axis = kept[static_cast<std::size_t>(axis)];
  step.before = std::move(before);
  step.after = std::move(after);
  return step;
}

// A local step that moves nothing: the placements change their names from problem.from to `after`.
Step rename(const Problem& problem, const Placements& after, std::int64_t bytes) {
  Step step{.kind = Step::Kind::slice, .axes = {}, .before = problem.from, .after = after};
  for (std::size_t axis = 0; axis < after.size(); ++axis) {
    if (problem.from[axis] != after[axis]) step.axes.push_back(static_cast<int>(axis));
  }
  step.peak_bytes = bytes;
  return step;
}

// Puts the renaming of trivial axes in front, as part of the first step if that is local too.
void prepend_rename(std::vector<Step>& steps, const Step& renamed) {
  if (renamed.axes.empty()) return;
  if (steps.empty() || steps.front().kind != Step::Kind::slice) {
    steps.insert(steps.begin(), renamed);
    return;
  }
  Step& first = steps.front();
  first.before = renamed.before;
  first.axes.insert(first.axes.end(), renamed.axes.begin(), renamed.axes.end());
  std::sort(first.axes.begin(), first.axes.end());
}

Plan total(std::vector<Step> steps, std::int64_t bytes) {
  Plan plan{.steps = std::move(steps), .seconds = 0, .bytes_sent = 0, .peak_bytes = bytes};
  for (const Step& step : plan.steps) {
    plan.seconds += step.seconds;
    plan.bytes_sent += step.bytes_sent;
    plan.peak_bytes = std::max(plan.peak_bytes, step.peak_bytes);
  }
  return plan;
}

}  // namespace

std::string_view to_string(Step::Kind kind) {
  switch (kind) {
    case Step::Kind::all_gather:
      return "all_gather";
    case Step::Kind::all_to_all:
      return "all_to_all";
    case Step::Kind::all_reduce:
      return "all_reduce";
    case Step::Kind::reduce_scatter:
      return "reduce_scatter";
    case Step::Kind::slice:
      return "slice";
    case Step::Kind::to_partial:
      return "to_partial";
  }
  return "?";
}

bool is_collective(Step::Kind kind) { return kind != Step::Kind::slice && kind != Step::Kind::to_partial; }

std::int64_t divisor_of(const Step& step, const Shape& mesh) {
  std::int64_t divisor = 1;
  const bool reduces = step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::reduce_scatter;
  for (const int axis : step.axes) {
    const auto a = static_cast<std::size_t>(axis);
    if (reduces && step.op == ReduceOp::sum && step.before[a].is_partial(ReduceOp::avg)) divisor *= mesh[a];
  }
  return divisor;
}

bool keeps_value(ReduceOp op, bool first_of_group) {
  return first_of_group || (op != ReduceOp::sum && op != ReduceOp::product && op != ReduceOp::bxor);
}

Plan plan_redistribute(const Problem& problem) {
  SearchStats unused;
  return plan_redistribute(problem, unused);
}

Plan plan_redistribute(const Problem& problem, SearchStats& stats) {
  check(problem);
  std::vector<int> kept;
  const Problem core = without_trivial_axes(problem, kept);
  const States ends(core);
  const std::int64_t bytes = ends.largest_bytes(ends.encode(core.from));
  if (problem.from == problem.to) return total({}, bytes);

  const bool is_empty = std::find(problem.shape.begin(), problem.shape.end(), 0) != problem.shape.end();
  if (is_empty) return total({rename(problem, problem.to, 0)}, 0);

  Placements renamed = problem.to;
  for (int axis : kept)
    renamed[static_cast<std::size_t>(axis)] = problem.from[static_cast<std::size_t>(axis)];
  std::vector<Step> steps;
  for (Step& step : cheapest_steps(core, stats))
    steps.push_back(on_whole_mesh(std::move(step), kept, problem.to));
  prepend_rename(steps, rename(problem, renamed, bytes));
  return total(std::move(steps), bytes);
}

}  // namespace meshtorch::internal
