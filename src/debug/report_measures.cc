// The sections of the report page that hold measures: training, memory, redistributions.
#include <algorithm>
#include <cmath>
#include <map>

#include "debug/report_sections.h"
#include "meshtorch/decision_log.h"

namespace meshtorch::report::internal {
namespace {

// More points than a curve can show become means of neighbours.
constexpr std::size_t kMaxPoints = 4000;

Json number_or_null(double value) { return std::isfinite(value) ? Json(value) : Json(nullptr); }

// Means of `group` neighbours; one that is not finite makes its mean so.
Json column(const std::vector<TrainingStep>& steps, double TrainingStep::* field, std::size_t group) {
  Json values = Json::array();
  for (std::size_t begin = 0; begin < steps.size(); begin += group) {
    const std::size_t end = std::min(begin + group, steps.size());
    double sum = 0;
    for (std::size_t i = begin; i < end; ++i) sum += steps[i].*field;
    // Six digits are more than a curve shows.
    const double mean = sum / static_cast<double>(end - begin);
    values.push_back(number_or_null(group == 1 ? mean : static_cast<double>(static_cast<float>(mean))));
  }
  return values;
}

Json reason_json(const DecisionLog::Reason& reason) {
  Json axes = Json::array();
  for (const DecisionLog::AxisOptions& axis : reason.axes) {
    Json options = Json::array();
    for (const DecisionLog::Option& o : axis.options)
      options.push_back({o.option, o.seconds, o.communicates, o.is_chosen});
    axes.push_back({{"axis", axis.axis}, {"options", std::move(options)}});
  }
  return {{"rule", reason.rule}, {"axes", std::move(axes)}};
}

}  // namespace

Json training_json(const std::vector<TrainingStep>& steps) {
  const std::size_t group = (steps.size() + kMaxPoints - 1) / kMaxPoints;
  Json numbers = Json::array();
  for (std::size_t begin = 0; begin < steps.size(); begin += group)
    numbers.push_back(steps[std::min(begin + group, steps.size()) - 1].step);
  return {{"mean_of", group},
          {"steps", steps.size()},
          {"step", std::move(numbers)},
          {"loss", column(steps, &TrainingStep::loss, group)},
          {"seconds", column(steps, &TrainingStep::seconds, group)},
          {"tokens_per_second", column(steps, &TrainingStep::tokens_per_second, group)},
          {"communication_share", column(steps, &TrainingStep::communication_share, group)}};
}

Json memory_json(const std::vector<RankMemory>& memory, const std::string& note) {
  Json ranks = Json::array();
  for (const RankMemory& m : memory) {
    Json rank{{"rank", m.rank},           {"parameters", m.parameters},   {"gradients", m.gradients},
              {"optimizer", m.optimizer}, {"activations", m.activations}, {"replicas", m.replicas}};
    if (m.measured_peak) rank["measured_peak"] = *m.measured_peak;
    ranks.push_back(std::move(rank));
  }
  return {{"ranks", std::move(ranks)}, {"note", note}};
}

// Equal reasons are written once, by their text.
Json redistributions_json(const DecisionLog& log) {
  Json entries = Json::array(), reasons = Json::array();
  std::map<std::string, std::size_t> numbers;
  for (const DecisionLog::Entry& e : log.entries()) {
    if (e.bytes_sent == 0) continue;
    Json entry{{"module", e.module},     {"backward", e.is_backward}, {"operator", e.op},
               {"argument", e.argument}, {"shape", e.shape},          {"from", to_string(e.from)},
               {"to", to_string(e.to)},  {"steps", e.steps},          {"bytes", e.bytes_sent},
               {"seconds", e.seconds},   {"count", e.count}};
    if (e.reason) {
      const Json reason = reason_json(*e.reason);
      const auto [found, is_new] = numbers.emplace(reason.dump(), reasons.size());
      if (is_new) reasons.push_back(reason);
      entry["reason"] = found->second;
    }
    entries.push_back(std::move(entry));
  }
  return {{"entries", std::move(entries)}, {"reasons", std::move(reasons)}};
}

}  // namespace meshtorch::report::internal
