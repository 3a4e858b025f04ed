// Checks each row of a table by itself: order, completeness, messages, gathered parameters.
#include "pipeline/schedule/facts.h"

#include <algorithm>
#include <set>
#include <stdexcept>

#include "pipeline/schedule/table_errors.h"

namespace meshtorch::internal {
namespace {

using Kind = PipelineAction::Kind;
using Row = std::vector<PipelineAction>;

[[noreturn]] void refuse(const std::string& what, const std::string& where, const std::string& remedy) {
  throw std::invalid_argument("meshtorch: " + what + where + "\n  do: " + remedy);
}

std::string row_text(int row) {
  return "\n  in: row " + std::to_string(row) + " (rank " + std::to_string(row) + ")";
}

std::string named(Kind kind, int stage, int microbatch) {
  return PipelineAction{.kind = kind, .stage = stage, .microbatch = microbatch}.to_string();
}

// Refuses a gap in the numbers: what is counted from 0 must be there up to the largest.
void check_no_gap(const std::set<int>& numbers, const std::string& noun) {
  int expected = 0;
  for (const int number : numbers) {
    if (number != expected)
      refuse("the pipeline table has " + noun + " " + std::to_string(number) + " and no " + noun + " " +
                 std::to_string(expected),
             "\n  in: all rows", "number each " + noun + " from 0");
    ++expected;
  }
}

TableFacts find_facts(const PipelineTable& table) {
  TableFacts facts;
  std::set<int> stages;
  std::set<int> microbatches;
  for (const Row& row : table.rows) {
    for (const PipelineAction& action : row) {
      if (action.kind == Kind::idle) continue;
      stages.insert(action.stage);
      if (action.microbatch >= 0) microbatches.insert(action.microbatch);
      facts.has_messages |= action.kind >= Kind::send_forward && action.kind <= Kind::receive_backward;
      facts.has_backward |= action.kind >= Kind::backward && action.kind <= Kind::backward_weight;
    }
  }
  if (microbatches.empty())
    refuse("the pipeline table has no action", "\n  in: its " + std::to_string(table.rows.size()) + " rows",
           "give each rank the actions of its stages, as 0F0");
  check_no_gap(stages, "stage");
  check_no_gap(microbatches, "micro-batch");
  facts.stages = static_cast<int>(stages.size());
  facts.microbatches = static_cast<int>(microbatches.size());
  facts.rank_of_stage.assign(stages.size(), -1);
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) {
    const Row& row = table.rows[rank];
    for (std::size_t i = 0; i < row.size(); ++i) {
      if (row[i].kind == Kind::idle) continue;
      int& known = facts.rank_of_stage[static_cast<std::size_t>(row[i].stage)];
      if (known < 0) known = static_cast<int>(rank);
      if (known != static_cast<int>(rank))
        refuse("stage " + std::to_string(row[i].stage) + " is on rank " + std::to_string(known) +
                   " and on rank " + std::to_string(rank),
               place_text(rank, column_of(row, i)), "give all actions of a stage to one rank");
    }
  }
  return facts;
}

// Which actions of a row have been run.
class RowCheck {
 public:
  explicit RowCheck(const TableFacts& facts)
      : facts_(facts),
        done_(kKinds * facts.pairs()),
        gathered_(facts.rank_of_stage.size()),
        reduced_(gathered_) {}

  void check(const Row& row, std::size_t rank) {
    row_ = &row;
    rank_ = rank;
    const bool gathers =
        std::ranges::any_of(row, [](const PipelineAction& a) { return a.kind == Kind::unshard; });
    for (column_ = 0; column_ < row.size(); ++column_) {
      const PipelineAction& action = row[column_];
      if (action.kind == Kind::idle) continue;
      if (action.microbatch < 0) {
        check_parameters(action);
        continue;
      }
      check_needs(action);
      const bool computes = action.kind >= Kind::forward && action.kind <= Kind::backward_weight;
      const auto stage = static_cast<std::size_t>(action.stage);
      if (computes && gathers && !gathered_[stage])
        refuse_here(action.to_string() + " runs while the parameters of stage " +
                        std::to_string(action.stage) + " are not gathered",
                    "put " + std::to_string(action.stage) + "UNSHARD before it");
      if (action.overlaps_next && (column_ + 1 == row.size() || row[column_ + 1].kind != Kind::backward))
        refuse_here(action.to_string() + " overlaps the next action, which is no backward",
                    "put a B after it");
      done(action.kind, action.stage, action.microbatch) = true;
    }
  }

  void check_complete() const {
    for (int stage = 0; stage < facts_.stages; ++stage) {
      for (int microbatch = 0; microbatch < facts_.microbatches; ++microbatch)
        check_complete(stage, microbatch);
    }
  }

 private:
  static constexpr std::size_t kKinds = 9;  // those with a micro-batch, and idle

  std::vector<bool>::reference done(Kind kind, int stage, int microbatch) {
    return done_[static_cast<std::size_t>(kind) * facts_.pairs() + facts_.index(stage, microbatch)];
  }
  bool is_done(Kind kind, int stage, int microbatch) const {
    return done_[static_cast<std::size_t>(kind) * facts_.pairs() + facts_.index(stage, microbatch)];
  }
  bool is_done(Kind kind, const PipelineAction& action) const {
    return is_done(kind, action.stage, action.microbatch);
  }

  [[noreturn]] void refuse_here(const std::string& what, const std::string& remedy) const {
    refuse(what, place_text(rank_, column_of(*row_, column_)), remedy);
  }
  void refuse_without(const PipelineAction& action, Kind needed, const std::string& why) const {
    const std::string name = named(needed, action.stage, action.microbatch);
    refuse_here(action.to_string() + " comes before " + name + ", " + why,
                "put " + name + " before " + action.to_string());
  }

  void check_needs(const PipelineAction& action) const {
    if (is_done(action.kind, action))
      refuse_here(action.to_string() + " is there twice", "remove one of them");
    const bool has_input_gradient = is_done(Kind::backward, action) || is_done(Kind::backward_input, action);
    switch (action.kind) {
      case Kind::forward:
        if (facts_.has_messages && facts_.crosses_ranks(action.stage, -1) &&
            !is_done(Kind::receive_forward, action))
          refuse_without(action, Kind::receive_forward, "which brings its input");
        break;
      case Kind::backward:
      case Kind::backward_input:
        if (!is_done(Kind::forward, action))
          refuse_without(action, Kind::forward, "whose activations it needs");
        if (has_input_gradient)
          refuse_here(action.to_string() + " is there beside " +
                          named(action.kind == Kind::backward ? Kind::backward_input : Kind::backward,
                                action.stage, action.microbatch),
                      "keep B, or I and W");
        if (facts_.has_messages && facts_.crosses_ranks(action.stage, 1) &&
            !is_done(Kind::receive_backward, action))
          refuse_without(action, Kind::receive_backward, "which brings the gradient of its output");
        break;
      case Kind::backward_weight:
        if (is_done(Kind::backward, action))
          refuse_here(action.to_string() + " is there beside " +
                          named(Kind::backward, action.stage, action.microbatch),
                      "keep B, or I and W");
        if (!is_done(Kind::backward_input, action))
          refuse_without(action, Kind::backward_input, "whose gradients it needs");
        break;
      case Kind::send_forward:
        check_peer(action, 1);
        if (!is_done(Kind::forward, action)) refuse_without(action, Kind::forward, "whose output it sends");
        break;
      case Kind::send_backward:
        check_peer(action, -1);
        if (!has_input_gradient) refuse_without(action, Kind::backward_input, "whose gradient it sends");
        break;
      case Kind::receive_forward:
        check_peer(action, -1);
        break;
      case Kind::receive_backward:
        check_peer(action, 1);
        break;
      default:
        break;
    }
  }

  void check_peer(const PipelineAction& action, int step) const {
    if (facts_.crosses_ranks(action.stage, step)) return;
    const int other = action.stage + step;
    const bool exists = other >= 0 && other < facts_.stages;
    refuse_here(action.to_string() + " has no other rank to talk to: " +
                    (exists ? "stage " + std::to_string(other) + " is on the same rank"
                            : "there is no stage " + std::to_string(other)),
                "remove it");
  }

  void check_parameters(const PipelineAction& action) {
    const auto stage = static_cast<std::size_t>(action.stage);
    if (action.kind == Kind::unshard || action.kind == Kind::reshard) {
      const bool gathers = action.kind == Kind::unshard;
      if (gathered_[stage] == gathers)
        refuse_here(action.to_string() + " finds the parameters of stage " + std::to_string(action.stage) +
                        (gathers ? " gathered already" : " not gathered"),
                    "alternate UNSHARD and RESHARD of a stage");
      gathered_[stage] = gathers;
      return;
    }
    if (reduced_[stage]) refuse_here(action.to_string() + " is there twice", "remove one of them");
    reduced_[stage] = true;
    for (int microbatch = 0; microbatch < facts_.microbatches; ++microbatch) {
      if (is_done(Kind::backward, action.stage, microbatch) ||
          is_done(Kind::backward_weight, action.stage, microbatch))
        continue;
      refuse_here(
          action.to_string() + " comes before the gradients of micro-batch " + std::to_string(microbatch),
          "put it after the last B or W of stage " + std::to_string(action.stage));
    }
  }

  void check_complete(int stage, int microbatch) const {
    const auto has = [&](Kind kind) { return is_done(kind, stage, microbatch); };
    const auto refuse_missing = [&](Kind kind, const std::string& why) {
      const std::string name = named(kind, stage, microbatch);
      refuse("the pipeline table has no " + name + why, row_text(facts_.rank_of(stage)), "add " + name);
    };
    if (!has(Kind::forward)) refuse_missing(Kind::forward, "");
    if (facts_.has_backward && !has(Kind::backward) && !has(Kind::backward_input))
      refuse_missing(Kind::backward, "");
    if (has(Kind::backward_input) && !has(Kind::backward_weight))
      refuse_missing(Kind::backward_weight,
                     ", though it has " + named(Kind::backward_input, stage, microbatch));
    if (!facts_.has_messages) return;
    if (facts_.crosses_ranks(stage, 1) && !has(Kind::send_forward))
      refuse_missing(Kind::send_forward,
                     ", though rank " + std::to_string(facts_.rank_of(stage + 1)) + " waits for it");
    if (facts_.has_backward && facts_.crosses_ranks(stage, -1) && !has(Kind::send_backward))
      refuse_missing(Kind::send_backward,
                     ", though rank " + std::to_string(facts_.rank_of(stage - 1)) + " waits for it");
  }

  const TableFacts& facts_;
  std::vector<bool> done_;
  std::vector<bool> gathered_;  // by stage
  std::vector<bool> reduced_;
  const Row* row_ = nullptr;
  std::size_t rank_ = 0;
  std::size_t column_ = 0;  // the index in the row
};

}  // namespace

TableFacts check_rows(const PipelineTable& table) {
  TableFacts facts = find_facts(table);
  RowCheck rows(facts);
  for (std::size_t rank = 0; rank < table.rows.size(); ++rank) rows.check(table.rows[rank], rank);
  rows.check_complete();
  return facts;
}

}  // namespace meshtorch::internal
