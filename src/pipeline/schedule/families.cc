// The schedules by name: those with one stage on a rank, those with several in turn, and the choice of the
// best.
#include "pipeline/schedule/families.h"

#include <algorithm>
#include <cctype>
#include <optional>
#include <stdexcept>

namespace meshtorch {
using namespace internal;
namespace {

PipelineTable gpipe(int ranks, int microbatches) {
  PipelineTable table;
  for (int rank = 0; rank < ranks; ++rank) {
    RowWriter writer(ranks, microbatches);
    for (int m = 0; m < microbatches; ++m) writer.forward(rank);
    for (int m = 0; m < microbatches; ++m) writer.backward(rank);
    table.rows.push_back(std::move(writer.row));
  }
  return table;
}

PipelineTable one_forward_one_backward(int ranks, int microbatches) {
  PipelineTable table;
  for (int rank = 0; rank < ranks; ++rank) {
    RowWriter writer(ranks, microbatches);
    const int ahead = std::min(microbatches, ranks - 1 - rank);
    for (int m = 0; m < ahead; ++m) writer.forward(rank);
    for (int m = 0; m < microbatches; ++m) {
      writer.forward(rank);  // nothing for the last of them
      writer.backward(rank);
    }
    table.rows.push_back(std::move(writer.row));
  }
  return table;
}

// Each stage runs all micro-batches before the next stage of its rank, and backward the other way round.
PipelineTable looped_breadth_first(int ranks, int microbatches, int stages_per_rank) {
  PipelineTable table;
  for (int rank = 0; rank < ranks; ++rank) {
    std::vector<PipelineAction>& row = table.rows.emplace_back();
    for (int stage = rank; stage < ranks * stages_per_rank; stage += ranks) {
      for (int m = 0; m < microbatches; ++m)
        row.push_back({.kind = PipelineAction::Kind::forward, .stage = stage, .microbatch = m});
    }
    for (auto i = std::ssize(row) - 1; i >= 0; --i) {
      PipelineAction action = row[static_cast<std::size_t>(i)];
      action.kind = PipelineAction::Kind::backward;
      row.push_back(action);
    }
  }
  return table;
}

enum class Backward : std::uint8_t { whole, split };

// One forward and one backward in turn, over the stages of the rank in rounds of micro-batches. A split
// backward starts with half of the forwards ahead, and keeps as many W behind as the rank started late.
PipelineTable interleaved(std::string_view name, const PipelineSize& size, Backward backward) {
  const int rounds = size.stages_per_rank == 1 ? 1 : std::max(1, size.microbatches / size.ranks);
  if (size.microbatches % rounds != 0)
    throw std::invalid_argument("meshtorch: " + std::string(name) + " runs " + std::to_string(size.ranks) +
                                " ranks in rounds of equal size, and " + std::to_string(size.microbatches) +
                                " micro-batches are no multiple of " + std::to_string(rounds) +
                                " rounds\n  in: make_pipeline_table\n  do: take a multiple of " +
                                std::to_string(size.ranks) + " micro-batches");
  const int per_round = size.microbatches / rounds;
  const int all = size.microbatches * size.stages_per_rank;
  PipelineTable table;
  for (int rank = 0; rank < size.ranks; ++rank) {
    RowWriter writer(size.ranks * size.stages_per_rank, size.microbatches);
    const auto stage_of = [&](int step) {
      return step / per_round % size.stages_per_rank * size.ranks + rank;
    };
    const auto stage_back = [&](int step) {
      return (size.stages_per_rank - 1 - step / per_round % size.stages_per_rank) * size.ranks + rank;
    };
    const int each = backward == Backward::whole ? 2 : 1;
    const int ahead = std::min(all, (size.stages_per_rank - 1) * per_round + each * (size.ranks - 1 - rank));
    for (int step = 0; step < ahead; ++step) writer.forward(stage_of(step));
    for (int step = 0; step < all; ++step) {
      if (step + ahead < all) writer.forward(stage_of(step + ahead));
      if (backward == Backward::whole) {
        writer.backward(stage_back(step));
      } else {
        writer.backward_input(stage_back(step));
        if (step >= rank) writer.oldest_weight();
      }
    }
    while (writer.oldest_weight()) {
    }
    table.rows.push_back(std::move(writer.row));
  }
  return table;
}

std::string lower(std::string_view text) {
  std::string result(text);
  std::ranges::transform(result, result.begin(),
                         [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return result;
}

const std::string& known_name(std::string_view name) {
  const std::vector<std::string>& names = pipeline_schedule_names();
  const auto known = std::ranges::find(names, lower(name), lower);
  if (known != names.end()) return *known;
  std::string list;
  for (const std::string& other : names) list.append(list.empty() ? "" : ", ").append(other);
  throw std::invalid_argument("meshtorch: there is no pipeline schedule \"" + std::string(name) +
                              "\"\n  in: make_pipeline_table\n  do: take one of " + list);
}

// How many stages a rank may have: from, and up to (0: any number).
struct StagesPerRank {
  int from;
  int to;
};

StagesPerRank stages_of(const std::string& name) {
  if (name == "GPipe" || name == "1F1B" || name == "ZBH1") return {1, 1};
  if (name == "ZBVZeroBubble" || name == "DualPipeV" || name == "VHalf" || name == "VMin") return {2, 2};
  return {2, 0};
}

void check_size(const std::string& name, const PipelineSize& size) {
  const auto refuse = [&](const std::string& what, const std::string& remedy) {
    throw std::invalid_argument("meshtorch: " + name + " " + what +
                                "\n  in: make_pipeline_table\n  do: " + remedy);
  };
  if (size.ranks < 1 || size.microbatches < 1)
    refuse("got " + std::to_string(size.ranks) + " ranks and " + std::to_string(size.microbatches) +
               " micro-batches",
           "give one or more of each");
  const StagesPerRank stages = stages_of(name);
  if (size.stages_per_rank < stages.from || (stages.to > 0 && size.stages_per_rank > stages.to))
    refuse("has " + std::to_string(stages.from) + (stages.to > 0 ? "" : " or more") +
               " stages on a rank, not " + std::to_string(size.stages_per_rank),
           "set stages_per_rank to " + std::to_string(stages.from) + ", or leave it out");
  if (name == "DualPipeV" && size.microbatches < 2 * size.ranks)
    refuse("needs as many micro-batches as stages, and got " + std::to_string(size.microbatches) +
               " micro-batches for " + std::to_string(2 * size.ranks) + " stages",
           "give " + std::to_string(2 * size.ranks) + " micro-batches or more, or take ZBVZeroBubble");
}

}  // namespace

const std::vector<std::string>& pipeline_schedule_names() {
  static const std::vector<std::string> names{
      "GPipe",         "1F1B",      "Interleaved1F1B", "LoopedBFS", "ZBH1", "InterleavedZeroBubble",
      "ZBVZeroBubble", "DualPipeV", "VHalf",           "VMin"};
  return names;
}

PipelineTable make_pipeline_table(std::string_view name, const PipelineSize& size) {
  const std::string& known = known_name(name);
  PipelineSize full = size;
  if (full.stages_per_rank == 0) full.stages_per_rank = stages_of(known).from;
  check_size(known, full);
  if (known == "GPipe") return gpipe(size.ranks, size.microbatches);
  if (known == "1F1B") return one_forward_one_backward(size.ranks, size.microbatches);
  if (known == "LoopedBFS") return looped_breadth_first(size.ranks, size.microbatches, full.stages_per_rank);
  if (known == "ZBVZeroBubble") return zero_bubble_v(size.ranks, size.microbatches);
  if (known == "DualPipeV") return dual_pipe_v(size.ranks, size.microbatches);
  if (known == "VHalf") return v_half(size.ranks, size.microbatches);
  if (known == "VMin") return v_min(size.ranks, size.microbatches);
  return interleaved(known, full, known == "Interleaved1F1B" ? Backward::whole : Backward::split);
}

}  // namespace meshtorch
