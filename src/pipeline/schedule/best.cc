// The best of all schedules for given times and memory.
#include <algorithm>
#include <cmath>
#include <optional>
#include <stdexcept>

#include "pipeline/schedule/families.h"

namespace meshtorch {
using namespace internal;
namespace {

constexpr int kMaxStagesPerRank = 4;

bool is_split(const PipelineTable& table) {
  for (const std::vector<PipelineAction>& row : table.rows) {
    for (const PipelineAction& action : row) {
      if (action.kind == PipelineAction::Kind::backward) return false;
    }
  }
  return true;
}

// The table of a schedule, and nothing where it does not exist in this size.
std::optional<PipelineTable> table_of(const std::string& name, const PipelineSize& size) {
  try {
    return make_pipeline_table(name, size);
  } catch (const std::invalid_argument&) {
    return std::nullopt;
  }
}

std::string number_text(double number) {
  std::string text = std::to_string(number);
  text.erase(text.find_last_not_of('0') + 1);
  if (text.ends_with('.')) text.pop_back();
  return text;
}

}  // namespace

PipelineChoice best_pipeline_table(int ranks, int microbatches, const PipelineTimes& times,
                                   double max_activations) {
  std::optional<PipelineChoice> best;
  double smallest = std::numeric_limits<double>::infinity();
  const auto consider = [&](const std::string& name, PipelineTable table, int stages_per_rank) {
    const double share = 1.0 / stages_per_rank;
    PipelineProof proof = prove(table, {times.forward * share, times.backward_input * share,
                                        times.backward_weight * share, times.message});
    const double peak = std::ranges::max(proof.peak_activations) * share;
    smallest = std::min(smallest, peak);
    if (peak > max_activations || (best && proof.seconds >= best->proof.seconds)) return;
    best = PipelineChoice{name, std::move(table), std::move(proof), peak};
  };
  for (const std::string& name : pipeline_schedule_names()) {
    for (int stages_per_rank = 1; stages_per_rank <= kMaxStagesPerRank; ++stages_per_rank) {
      std::optional<PipelineTable> table = table_of(name, {ranks, microbatches, stages_per_rank});
      if (!table) continue;
      const int limit = static_cast<int>(std::min(1e6, std::floor(max_activations * stages_per_rank)));
      const double share = 1.0 / stages_per_rank;
      if (is_split(*table)) {
        PipelineTable moved = move_weights(*table,
                                           {times.forward * share, times.backward_input * share,
                                            times.backward_weight * share, times.message},
                                           std::vector<int>(table->rows.size(), limit));
        if (!moved.rows.empty()) consider(name, std::move(moved), stages_per_rank);
      }
      consider(name, std::move(*table), stages_per_rank);
    }
  }
  if (best) return std::move(*best);
  throw std::invalid_argument("meshtorch: no pipeline schedule of " + std::to_string(ranks) + " ranks and " +
                              std::to_string(microbatches) + " micro-batches holds at most " +
                              number_text(max_activations) + " activations: the smallest holds " +
                              number_text(smallest) + "\n  in: best_pipeline_table\n  do: allow " +
                              number_text(smallest));
}

}  // namespace meshtorch
