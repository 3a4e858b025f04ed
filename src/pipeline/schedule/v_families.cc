// Schedules whose stages form a V: the ranks are passed downwards and then upwards again.
#include <algorithm>
#include <array>

#include "pipeline/schedule/families.h"
#include "pipeline/schedule/play.h"

namespace meshtorch::internal {
namespace {

using Kind = PipelineAction::Kind;

// One micro-batch of V-Half or V-Min in slots of equal length. A micro-batch starts every 6 slots, so that
// the actions of a rank must be apart modulo 6. F and I go down and up; each direction has its number of
// slots between ranks, and each turn some more.
struct Block {
  std::array<int, 4> steps;  // of F down, F up, I down, I up
  std::array<int, 3> turns;  // at the last rank, at the first rank, at the last rank again
};
constexpr int kSlots = 6;  // F, I and W of two stages

std::vector<std::array<int, 4>> starts_of(const Block& block, int ranks) {
  std::vector<std::array<int, 4>> starts(static_cast<std::size_t>(ranks));
  const std::size_t last = starts.size() - 1;
  for (std::size_t r = 1; r <= last; ++r) starts[r][0] = starts[r - 1][0] + block.steps[0];
  starts[last][1] = starts[last][0] + 1 + block.turns[0];
  for (std::size_t r = last; r > 0; --r) starts[r - 1][1] = starts[r][1] + block.steps[1];
  starts[0][2] = starts[0][1] + 1 + block.turns[1];
  for (std::size_t r = 1; r <= last; ++r) starts[r][2] = starts[r - 1][2] + block.steps[2];
  starts[last][3] = starts[last][2] + 1 + block.turns[2];
  for (std::size_t r = last; r > 0; --r) starts[r - 1][3] = starts[r][3] + block.steps[3];
  return starts;
}

// The slots of W of both stages: the two that are left, in the order in which less is kept.
std::array<int, 2> weight_starts(const std::array<int, 4>& starts) {
  std::vector<int> left;
  for (int slot = 0; slot < kSlots; ++slot) {
    if (std::ranges::none_of(starts, [&](int start) { return start % kSlots == slot; })) left.push_back(slot);
  }
  const auto after = [](int start, int slot) {
    return start + 1 + (slot - start - 1 + 1000 * kSlots) % kSlots;
  };
  const std::array<int, 2> one{after(starts[3], left[0]), after(starts[2], left[1])};
  const std::array<int, 2> other{after(starts[3], left[1]), after(starts[2], left[0])};
  return one[0] + one[1] < other[0] + other[1] ? one : other;
}

// The row of a rank: all actions in the order of their slots.
std::vector<PipelineAction> row_of(const std::array<int, 4>& starts, int rank, int ranks, int microbatches) {
  const int near = rank;
  const int far = 2 * ranks - 1 - rank;
  const std::array<int, 2> weights = weight_starts(starts);
  std::vector<std::pair<int, PipelineAction>> placed;
  for (int m = 0; m < microbatches; ++m) {
    const auto place = [&](int start, Kind kind, int stage) {
      placed.push_back({start + kSlots * m, {.kind = kind, .stage = stage, .microbatch = m}});
    };
    place(starts[0], Kind::forward, near);
    place(starts[1], Kind::forward, far);
    place(starts[2], Kind::backward_input, far);
    place(starts[3], Kind::backward_input, near);
    place(weights[0], Kind::backward_weight, near);
    place(weights[1], Kind::backward_weight, far);
  }
  std::ranges::sort(placed, {}, [](const auto& entry) { return entry.first; });
  std::vector<PipelineAction> row;
  for (const auto& entry : placed) row.push_back(entry.second);
  return row;
}

// Each W fills a gap as long as no rank holds more than the block does.
PipelineTable of_block(const Block& block, int ranks, int microbatches) {
  const std::vector<std::array<int, 4>> starts = starts_of(block, ranks);
  PipelineTable table;
  for (int rank = 0; rank < ranks; ++rank)
    table.rows.push_back(row_of(starts[static_cast<std::size_t>(rank)], rank, ranks, microbatches));
  const std::vector<int> peaks = prove(table).peak_activations;
  return move_weights(table, {}, std::vector<int>(peaks.size(), std::ranges::max(peaks)));
}

}  // namespace

PipelineTable v_half(int ranks, int microbatches) {
  const std::array<int, 3> turns = ranks % 2 == 0 ? std::array{3, 0, 4} : std::array{0, 0, 1};
  return of_block({.steps = {1, 2, 1, 2}, .turns = turns}, ranks, microbatches);
}

PipelineTable v_min(int ranks, int microbatches) {
  const std::array<int, 3> turns = ranks % 3 == 0 ? std::array{2, 0, 2} : std::array{0, 0, 0};
  return of_block({.steps = {1, 1, 1, 1}, .turns = turns}, ranks, microbatches);
}

PipelineTable zero_bubble_v(int ranks, int microbatches) {
  PipelineTable table;
  const int filled = std::max(microbatches, 2 * ranks - 1);  // the fewest that fill the pipeline
  for (int rank = 0; rank < ranks; ++rank) {
    const int near = rank;
    const int far = 2 * ranks - 1 - rank;
    RowWriter writer(2 * ranks, microbatches);
    const auto both_halves = [&](int stage) {
      writer.backward_input(stage);
      writer.backward_weight(stage);
    };
    for (int i = 0; i < 2 * (ranks - rank) - 1; ++i) writer.forward(near);
    for (int i = 0; i < rank; ++i) {
      writer.forward(far);
      writer.forward(near);
    }
    for (int i = 0; i < ranks - rank; ++i) {
      writer.forward(far);
      both_halves(far);
    }
    while (writer.forwards(far) < filled) {
      if (writer.forwards(near) < filled) writer.forward(near);
      both_halves(near);
      writer.forward(far);
      both_halves(far);
    }
    for (int i = 0; i < rank; ++i) {
      writer.backward_input(near);
      writer.backward_input(far);
    }
    for (int i = 0; i < ranks - rank; ++i) both_halves(near);
    for (int i = 0; i < rank; ++i) writer.backward_weight(far);
    for (int i = 0; i < rank; ++i) writer.backward_weight(near);
    table.rows.push_back(std::move(writer.row));
  }
  return table;
}

PipelineTable dual_pipe_v(int ranks, int microbatches) {
  PipelineTable table;
  for (int rank = 0; rank < ranks; ++rank) {
    const int near = rank;
    const int far = 2 * ranks - 1 - rank;
    const int below = ranks - 1 - rank;  // ranks further down the V
    RowWriter writer(2 * ranks, microbatches);
    for (int i = 0; i < 2 * below; ++i) writer.forward(near);
    for (int i = 0; i <= rank; ++i) {
      writer.forward(near);
      writer.forward(far);
    }
    for (int i = 0; i < below; ++i) {
      writer.backward_input(far);
      writer.oldest_weight();
      writer.forward(far);
    }
    for (int i = 0; i < microbatches - 2 * ranks + rank + 1; ++i) {
      const bool is_first_at_the_turn = i == 0 && below == 0;
      writer.forward(near, !is_first_at_the_turn);
      writer.backward(far);
      writer.forward(far, true);
      writer.backward(near);
    }
    for (int i = 0; i < below; ++i) {
      writer.backward(far);
      writer.forward(far, true);
      writer.backward(near);
    }
    // The second half of what follows leaves W for the gaps at the end.
    int backwards = 0;
    const auto end = [&](int stage) {
      if (backwards++ < rank + 1) return writer.backward(stage);
      writer.backward_input(stage);
    };
    for (int i = 0; i <= rank; ++i) {
      end(far);
      end(near);
    }
    for (int i = 0; i < below; ++i) {
      writer.oldest_weight();
      end(near);
    }
    while (writer.oldest_weight()) {
    }
    table.rows.push_back(std::move(writer.row));
  }
  return table;
}

}  // namespace meshtorch::internal
