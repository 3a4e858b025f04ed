// Transfers: intersections of holdings, dim by dim, put together to boxes.
#include "redistribute/transfer.h"

#include <algorithm>

namespace meshtorch::internal {
namespace {

// A run of indices of one dim, in the local coordinates of both sides.
struct Run {
  std::int64_t source = 0;
  std::int64_t target = 0;
  std::int64_t size = 0;
};

// The indices that both hold, as maximal runs. Holdings ascend, so that runs are in order on both
// sides.
std::vector<Run> common_runs(const std::vector<Range>& source, const std::vector<Range>& target) {
  std::vector<Run> runs;
  std::int64_t source_position = 0;
  std::int64_t target_position = 0;
  for (auto s = source.begin(), t = target.begin(); s != source.end() && t != target.end();) {
    const std::int64_t begin = std::max(s->begin, t->begin);
    const std::int64_t end = std::min(s->end(), t->end());
    if (begin < end) {
      const Run run{source_position + begin - s->begin, target_position + begin - t->begin, end - begin};
      Run* last = runs.empty() ? nullptr : &runs.back();
      if (last && last->source + last->size == run.source && last->target + last->size == run.target) {
        last->size += run.size;
      } else {
        runs.push_back(run);
      }
    }
    if (s->end() == end)
      source_position += (s++)->size;
    else
      target_position += (t++)->size;
  }
  return runs;
}

// False if another member is the source of all that the sender could give.
bool is_source(const Step& step, const Shape& sender, const Shape& receiver) {
  if (step.kind == Step::Kind::all_reduce || step.kind == Step::Kind::reduce_scatter) return true;
  if (sender == receiver) return true;
  if (!is_collective(step.kind)) return false;
  // An index has one holder for each coordinate on the replicated axes of the group, and its
  // coordinates on the split axes are fixed. So two members with equal ones hold the same, others
  // nothing in common.
  bool receiver_holds_it = true;
  bool is_lowest = true;
  for (int a : step.axes) {
    const auto axis = static_cast<std::size_t>(a);
    if (step.before[axis].is_shard()) {
      receiver_holds_it = receiver_holds_it && sender[axis] == receiver[axis];
    } else {
      is_lowest = is_lowest && sender[axis] == 0;
    }
  }
  return is_lowest && !receiver_holds_it;
}

// The boxes of all combinations of runs, the last dim fastest.
std::vector<Piece> boxes(const std::vector<std::vector<Run>>& runs) {
  std::vector<Piece> found{{}};
  for (const std::vector<Run>& dim_runs : runs) {
    std::vector<Piece> longer;
    for (const Piece& piece : found) {
      for (const Run& run : dim_runs) {
        longer.push_back(piece);
        longer.back().source.push_back({run.source, run.size});
        longer.back().target.push_back({run.target, run.size});
      }
    }
    found = std::move(longer);
  }
  return found;
}

}  // namespace

std::vector<Piece> common_boxes(const std::vector<std::vector<Range>>& source,
                                const std::vector<std::vector<Range>>& target) {
  std::vector<std::vector<Run>> runs;
  for (std::size_t dim = 0; dim < source.size(); ++dim) {
    runs.push_back(common_runs(source[dim], target[dim]));
    if (runs.back().empty()) return {};
  }
  return boxes(runs);
}

std::int64_t element_count(const std::vector<Piece>& pieces) {
  std::int64_t sum = 0;
  for (const Piece& piece : pieces) {
    std::int64_t product = 1;
    for (const Range& range : piece.source) product *= range.size;
    sum += product;
  }
  return sum;
}

std::vector<Shape> group_members(const Shape& mesh, const std::vector<int>& axes, const Shape& coordinate) {
  std::vector<Shape> members{coordinate};
  for (int a : axes) {
    const auto axis = static_cast<std::size_t>(a);
    std::vector<Shape> more;
    for (const Shape& member : members) {
      for (std::int64_t index = 0; index < mesh[axis]; ++index) {
        more.push_back(member);
        more.back()[axis] = index;
      }
    }
    members = std::move(more);
  }
  return members;
}

std::vector<Piece> pieces(const Shape& shape, const Shape& mesh, const Step& step, const Shape& sender,
                          const Shape& receiver) {
  if (!is_source(step, sender, receiver)) return {};
  return common_boxes(held_in_each_dim(shape, step.before, mesh, sender),
                      held_in_each_dim(shape, step.after, mesh, receiver));
}

}  // namespace meshtorch::internal
