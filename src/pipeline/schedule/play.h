// Plays a table: every rank runs its row, and waits where an action needs what another rank has not done yet.
// No torch.
#pragma once

#include <functional>
#include <vector>

#include "pipeline/schedule/clock.h"

namespace meshtorch::internal {

enum class Buffering : std::uint8_t {
  unlimited,  // a send never waits
  none,       // a send waits until its receiver is at the receive
};

struct Played {
  std::vector<std::vector<PlannedAction>> timeline;  // by rank
  std::vector<std::size_t> next;                     // by rank: the index of the action where it stopped
  bool is_complete = false;
};

// Runs the action that can begin first, again and again. `before_each` is called with the begin of each
// action before it runs; these never decrease.
Played play(const PipelineTable& table, const TableFacts& facts, const PipelineTimes& times,
            Buffering buffering,
            const std::function<void(const PlannedAction&, std::size_t rank)>& before_each = {});

// Throws std::invalid_argument for a table that stopped: it names the first rank that waits and those that it
// waits for, up to one that was named before.
[[noreturn]] void refuse_deadlock(const PipelineTable& table, const TableFacts& facts, const Played& played,
                                  Buffering buffering);

}  // namespace meshtorch::internal
