// One page in one file that shows how a model is split, what it sends, and where time and memory go.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/debug.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/memory.h"

namespace torch::nn {
class Module;
}

namespace meshtorch {
class DecisionLog;
class ParallelizePlan;
}  // namespace meshtorch

namespace meshtorch::report {

// What is known of one training step; what is not finite is left out of the curves.
struct TrainingStep {
  std::int64_t step = 0;
  double loss = 0;
  double seconds = 0;
  double tokens_per_second = 0;
  double communication_share = 0;  // of the step's time
};

// The collectives of one part of a step: "forward", "loss", …
struct Phase {
  std::string name;
  CommCounts counts;
};

// What the page shows. Sections of which nothing is given are left out.
struct Contents {
  std::string title = "meshtorch";
  std::vector<std::pair<std::string, std::string>> facts = {};  // name and value, below the title
  std::optional<DeviceMesh> mesh = std::nullopt;  // default: the largest mesh that a parameter lies on
  const torch::nn::Module* module = nullptr;
  const ParallelizePlan* plan = nullptr;  // the styles that the module's parts got
  const CommDebugMode* comm = nullptr;
  std::string comm_of = "What was counted";  // what `comm` counted: "One training step"
  std::vector<Phase> phases = {};
  const DecisionLog* decisions = nullptr;
  std::vector<std::string> traces = {};  // of TraceMode::gather()
  std::vector<TrainingStep> steps = {};
  std::vector<RankMemory> memory = {};  // of gather_memory() or estimate_memory()
  std::string memory_note = {};         // what the numbers hold, in words
};

// Writes the page: nothing is communicated, one rank calls it. The file appears when it is complete.
MESHTORCH_API void write(const std::string& path, const Contents& contents);
// The page as text, and its data alone, as JSON.
MESHTORCH_API std::string html(const Contents& contents);
MESHTORCH_API std::string json(const Contents& contents);

}  // namespace meshtorch::report
