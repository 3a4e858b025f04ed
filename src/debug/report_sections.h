// The sections of the report page as JSON, for modules of either language.
#pragma once

#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "debug/sharding_table.h"
#include "meshtorch/api.h"
#include "meshtorch/report.h"

namespace meshtorch::report::internal {

using namespace meshtorch::internal;

using Json = nlohmann::ordered_json;

struct ModulePart {
  std::string name;   // "" is the module itself
  std::string type;   // its class
  std::string style;  // that the plan gave it; may be empty
};
// A module as the page shows it.
struct ModuleTree {
  std::vector<ModulePart> parts;
  NamedTensors parameters;
};
ModuleTree tree_of(const torch::nn::Module& module, const ParallelizePlan* plan);

// The largest mesh that a parameter lies on, if any does.
std::optional<DeviceMesh> mesh_of(const ModuleTree& tree);

Json mesh_json(const DeviceMesh& mesh);
Json modules_json(const ModuleTree& tree, const std::optional<DeviceMesh>& mesh);
Json communication_json(const CommDebugMode& comm, const std::string& what, const std::vector<Phase>& phases);
Json redistributions_json(const DecisionLog& log);
Json training_json(const std::vector<TrainingStep>& steps);
Json memory_json(const std::vector<RankMemory>& memory, const std::string& note);

// The page's data of a module that is given as a tree rather than by contents.module.
std::string json_of(const Contents& contents, const std::optional<ModuleTree>& tree);
MESHTORCH_FOR_PYTHON void write_page(const std::string& path, const Contents& contents,
                                     const std::optional<ModuleTree>& tree);

}  // namespace meshtorch::report::internal
