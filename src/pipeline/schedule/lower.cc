// What a table of computations leaves out: messages between ranks, and the gathers of fully_shard.
#include <algorithm>
#include <queue>
#include <stdexcept>

#include "pipeline/schedule/play.h"

namespace meshtorch {
using namespace internal;
namespace {

using Kind = PipelineAction::Kind;
using Row = std::vector<PipelineAction>;

// A message that is sent when its action ends. Equal times keep the order in which their actions began.
struct Message {
  double time;
  std::size_t number;
  PipelineAction send;
  PipelineAction receive;
  friend bool operator>(const Message& a, const Message& b) {
    return std::pair(a.time, a.number) > std::pair(b.time, b.number);
  }
};

// Writes all actions in one order of time: what each row gets is a part of that order. So the first message
// that is not delivered is next in both of its rows, and never waits for another.
class MessageWriter {
 public:
  MessageWriter(const TableFacts& facts, std::size_t ranks) : facts_(facts) { table_.rows.resize(ranks); }

  void add(const PlannedAction& planned, std::size_t rank) {
    send_until(planned.begin);
    PipelineAction action = planned.action;
    action.overlaps_next = false;  // messages come in between
    table_.rows[rank].push_back(action);
    if (action.kind == Kind::forward) announce(planned, Kind::send_forward, Kind::receive_forward, 1);
    if (action.kind == Kind::backward || action.kind == Kind::backward_input)
      announce(planned, Kind::send_backward, Kind::receive_backward, -1);
  }
  PipelineTable finish() {
    while (!waiting_.empty()) send_first();
    return std::move(table_);
  }

 private:
  void announce(const PlannedAction& planned, Kind send, Kind receive, int step) {
    const PipelineAction& action = planned.action;
    if (!facts_.crosses_ranks(action.stage, step)) return;
    waiting_.push(
        {.time = planned.end,
         .number = announced_++,
         .send = {.kind = send, .stage = action.stage, .microbatch = action.microbatch},
         .receive = {.kind = receive, .stage = action.stage + step, .microbatch = action.microbatch}});
  }
  void send_until(double time) {
    while (!waiting_.empty() && waiting_.top().time <= time) send_first();
  }
  void send_first() {
    for (const PipelineAction& half : {waiting_.top().send, waiting_.top().receive})
      table_.rows[static_cast<std::size_t>(facts_.rank_of(half.stage))].push_back(half);
    waiting_.pop();
  }

  const TableFacts& facts_;
  PipelineTable table_;
  std::priority_queue<Message, std::vector<Message>, std::greater<>> waiting_;
  std::size_t announced_ = 0;
};

bool computes(const PipelineAction& action) {
  return action.kind >= Kind::forward && action.kind <= Kind::backward_weight;
}

// The first `count` different stages that the row runs from `begin` on.
std::vector<int> next_stages(const Row& row, std::size_t begin, int count) {
  std::vector<int> stages;
  for (std::size_t i = begin; i < row.size() && std::ssize(stages) < count; ++i) {
    if (computes(row[i]) && std::ranges::find(stages, row[i].stage) == stages.end())
      stages.push_back(row[i].stage);
  }
  return stages;
}

Row with_gathers(const Row& row, int max_active) {
  Row result;
  std::vector<int> active;
  for (std::size_t i = 0; i < row.size(); ++i) {
    const PipelineAction& action = row[i];
    const bool ends_overlap = i > 0 && row[i - 1].overlaps_next;
    if (computes(action) && !ends_overlap) {
      const std::vector<int> next = next_stages(row, i, max_active);
      std::erase_if(active, [&](int stage) {
        const bool is_over = std::ranges::find(next, stage) == next.end();
        if (is_over) result.push_back({.kind = Kind::reshard, .stage = stage});
        return is_over;
      });
      for (const int stage : next) {
        if (std::ranges::find(active, stage) != active.end()) continue;
        result.push_back({.kind = Kind::unshard, .stage = stage});
        active.push_back(stage);
      }
    }
    if (action.kind != Kind::idle) result.push_back(action);
    const auto gives_gradients = [](Kind kind) {
      return kind == Kind::backward || kind == Kind::backward_weight;
    };
    const bool is_last = std::none_of(row.begin() + static_cast<std::ptrdiff_t>(i) + 1, row.end(),
                                      [&](const PipelineAction& later) {
                                        return gives_gradients(later.kind) && later.stage == action.stage;
                                      });
    if (gives_gradients(action.kind) && is_last)
      result.push_back({.kind = Kind::reduce_gradients, .stage = action.stage});
  }
  for (const int stage : active) result.push_back({.kind = Kind::reshard, .stage = stage});
  return result;
}

}  // namespace

PipelineTable add_messages(const PipelineTable& table, const PipelineTimes& times) {
  const TableFacts facts = check_rows(table);
  if (facts.has_messages) return table;
  MessageWriter writer(facts, table.rows.size());
  const Played played =
      play(table, facts, times, Buffering::unlimited,
           [&](const PlannedAction& planned, std::size_t rank) { writer.add(planned, rank); });
  if (!played.is_complete) refuse_deadlock(table, facts, played, Buffering::unlimited);
  return writer.finish();
}

PipelineTable add_gathers(const PipelineTable& table, int max_active) {
  check_rows(table);
  if (max_active < 2)
    throw std::invalid_argument("meshtorch: " + std::to_string(max_active) +
                                " stages at a time are too few to gather\n  in: add_gathers\n  do: allow 2 "
                                "or more, since a forward and a "
                                "backward may overlap");
  PipelineTable result;
  for (const Row& row : table.rows) result.rows.push_back(with_gathers(row, max_active));
  return result;
}

}  // namespace meshtorch
