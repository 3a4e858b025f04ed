// Plays a table, and says where it stops.
#include "pipeline/schedule/play.h"

#include <algorithm>
#include <optional>
#include <stdexcept>

#include "pipeline/schedule/table_errors.h"

namespace meshtorch::internal {
namespace {

using Kind = PipelineAction::Kind;

bool is_send(Kind kind) { return kind == Kind::send_forward || kind == Kind::send_backward; }
bool is_receive(Kind kind) { return kind == Kind::receive_forward || kind == Kind::receive_backward; }

// The other half of a message.
PipelineAction counterpart(const PipelineAction& action) {
  PipelineAction other = action;
  switch (action.kind) {
    case Kind::send_forward:
      other.kind = Kind::receive_forward;
      break;
    case Kind::receive_forward:
      other.kind = Kind::send_forward;
      break;
    case Kind::send_backward:
      other.kind = Kind::receive_backward;
      break;
    default:
      other.kind = Kind::send_backward;
      break;
  }
  other.stage += action.kind == Kind::send_forward || action.kind == Kind::receive_backward ? 1 : -1;
  return other;
}

class Player {
 public:
  Player(const PipelineTable& table, const TableFacts& facts, const PipelineTimes& times, Buffering buffering)
      : table_(table), facts_(facts), buffering_(buffering), clock_(facts, table.rows.size(), times) {
    played_.timeline.resize(table.rows.size());
    played_.next.resize(table.rows.size());
  }

  Played run(const std::function<void(const PlannedAction&, std::size_t)>& before_each) {
    for (;;) {
      std::optional<std::pair<double, std::size_t>> first;
      for (std::size_t rank = 0; rank < table_.rows.size(); ++rank) {
        const std::optional<double> begin = earliest(rank);
        if (begin && (!first || *begin < first->first)) first = {*begin, rank};
      }
      if (!first) break;
      advance(first->second, before_each);
    }
    played_.is_complete = std::ranges::equal(
        played_.next, table_.rows, [](std::size_t next, const auto& row) { return next == row.size(); });
    return std::move(played_);
  }

 private:
  // The action where the rank is, idle entries passed over; null at its end.
  const PipelineAction* head(std::size_t rank) {
    const std::vector<PipelineAction>& row = table_.rows[rank];
    std::size_t& next = played_.next[rank];
    while (next < row.size() && row[next].kind == Kind::idle) ++next;
    return next < row.size() ? &row[next] : nullptr;
  }
  bool meets(const PipelineAction& action) const {
    return buffering_ == Buffering::none && (is_send(action.kind) || is_receive(action.kind));
  }

  std::optional<double> earliest(std::size_t rank) {
    const PipelineAction* action = head(rank);
    if (action == nullptr) return std::nullopt;
    if (!meets(*action)) return clock_.earliest(rank, *action);
    const auto peer = static_cast<std::size_t>(facts_.rank_of(counterpart(*action).stage));
    const PipelineAction* other = head(peer);
    if (other == nullptr || *other != counterpart(*action)) return std::nullopt;
    return std::max(clock_.now(rank), clock_.now(peer));
  }

  void advance(std::size_t rank, const std::function<void(const PlannedAction&, std::size_t)>& before_each) {
    const PipelineAction action = *head(rank);
    if (meets(action)) {
      const auto peer = static_cast<std::size_t>(facts_.rank_of(counterpart(action).stage));
      clock_.meet(rank, peer);
      run_head(peer);
    } else if (before_each) {
      const double begin = *clock_.earliest(rank, action);
      before_each({action, begin, begin + clock_.duration(action.kind)}, rank);
    }
    run_head(rank);
  }
  void run_head(std::size_t rank) {
    played_.timeline[rank].push_back(clock_.run(rank, *head(rank)));
    ++played_.next[rank];
  }

  const PipelineTable& table_;
  const TableFacts& facts_;
  const Buffering buffering_;
  PipelineClock clock_;
  Played played_;
};

// What the action waits for: its message, or the compute action of a neighbour that gives what it needs.
PipelineAction awaited(const PipelineAction& action) {
  if (is_send(action.kind) || is_receive(action.kind)) return counterpart(action);
  const bool is_forward = action.kind == Kind::forward;
  return {.kind = is_forward ? Kind::forward : Kind::backward,
          .stage = action.stage + (is_forward ? -1 : 1),
          .microbatch = action.microbatch};
}

// The gradient comes from B or from I, whichever the row has.
bool gives(const PipelineAction& action, const PipelineAction& needed) {
  const bool is_kind =
      action.kind == needed.kind || (needed.kind == Kind::backward && action.kind == Kind::backward_input);
  return is_kind && action.stage == needed.stage && action.microbatch == needed.microbatch;
}

// The first rank that stopped and those that it waits for, up to one that was named before.
std::string waiting_text(const PipelineTable& table, const TableFacts& facts, const Played& played) {
  std::string text;
  std::vector<bool> is_named(table.rows.size());
  std::size_t rank = 0;
  while (played.next[rank] == table.rows[rank].size()) ++rank;
  while (!is_named[rank]) {
    is_named[rank] = true;
    const std::vector<PipelineAction>& row = table.rows[rank];
    const PipelineAction& action = row[played.next[rank]];
    const PipelineAction needed = awaited(action);
    const auto peer = static_cast<std::size_t>(facts.rank_of(needed.stage));
    const std::vector<PipelineAction>& other = table.rows[peer];
    const auto source =
        std::ranges::find_if(other, [&](const PipelineAction& a) { return gives(a, needed); });
    text.append("\n    rank ").append(std::to_string(rank)).append(" waits at column ");
    text.append(std::to_string(column_of(row, played.next[rank]))).append(", ").append(action.to_string());
    text.append(", for ").append(source == other.end() ? needed.to_string() : source->to_string());
    if (source != other.end())
      text.append(" at column ")
          .append(std::to_string(column_of(other, static_cast<std::size_t>(source - other.begin()))));
    text.append(" of rank ").append(std::to_string(peer));
    rank = peer;
  }
  return text;
}

}  // namespace

Played play(const PipelineTable& table, const TableFacts& facts, const PipelineTimes& times,
            Buffering buffering,
            const std::function<void(const PlannedAction&, std::size_t rank)>& before_each) {
  return Player(table, facts, times, buffering).run(before_each);
}

void refuse_deadlock(const PipelineTable& table, const TableFacts& facts, const Played& played,
                     Buffering buffering) {
  std::size_t rank = 0;
  while (played.next[rank] == table.rows[rank].size()) ++rank;
  const bool is_buffered = buffering == Buffering::unlimited;
  throw std::invalid_argument(std::string("meshtorch: the pipeline table ") +
                              (is_buffered ? "cannot end" : "ends only if messages are buffered") + ":" +
                              waiting_text(table, facts, played) +
                              place_text(rank, column_of(table.rows[rank], played.next[rank])) + "\n  do: " +
                              (is_buffered ? "move an action of this circle behind the one it waits for"
                                           : "give both ranks of a pair their messages in one order"));
}

}  // namespace meshtorch::internal
