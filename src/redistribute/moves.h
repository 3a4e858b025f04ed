// The moves from one state to another: their kinds, whether they may, what they cost. No torch.
#pragma once

#include <functional>
#include <optional>

#include "redistribute/coverage.h"

namespace meshtorch::internal {

struct Move {
  Step::Kind kind = Step::Kind::slice;
  AxisSet axes = 0;
  ReduceOp op = ReduceOp::sum;
};

// The local tensors of the rank that holds most, before and after a move.
struct LocalBytes {
  std::int64_t before = 0;
  std::int64_t after = 0;
};

struct Price {
  double seconds = 0;           // with every member as slow as the one that moves most
  std::int64_t bytes_sent = 0;  // by the rank that sends most
};

class Moves {
 public:
  Moves(const States& states, SearchStats& stats);

  // Calls `visit(after, move)` for each state that one kind of move on the axes that differ might
  // lead to. Whether it does is for `allowed` and `widened` to say.
  using Visit = std::function<void(const State& after, const Move& move)>;
  void for_each(const State& before, const Visit& visit) const;

  // The move between two states on the axes on which they differ; none if no single kind of move
  // does it.
  std::optional<Move> between(const State& before, const State& after) const;

  // True if the move ends in `after`: every rank finds what it needs in its group, and reductions
  // come in their order.
  bool allowed(const State& before, const State& after, const Move& move);

  // Where the axes that differ do not suffice: the cheapest all_to_all that also takes in axes
  // whose shards keep their name but not their indices, as axis 1 in (S0, S0) -> (R, S0).
  std::optional<Move> widened(const State& before, const State& after, const Move& move,
                              const LocalBytes& bytes);

  Price price(const State& after, const Move& move, const LocalBytes& bytes) const;

 private:
  struct GroupCost {
    std::int64_t members = 1;
    AxisCost worst{0, 0};
  };
  // How many members need each index that an all_to_all sends.
  std::int64_t copies(const State& after, AxisSet axes) const;

  const States& states_;
  SearchStats& stats_;
  Coverage coverage_;
  std::vector<GroupCost> groups_;  // by axis set
};

}  // namespace meshtorch::internal
