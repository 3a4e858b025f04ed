// The sections of the report page: mesh, modules, communication.
#include "debug/report_sections.h"

#include <torch/nn/module.h>

#include <algorithm>

#include "backends/backend_traits.h"
#include "debug/report/layouts.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/parallelize.h"
#include "meshtorch/process_group.h"
#include "nn/hookable_module.h"
#include "nn/styled_modules.h"

namespace meshtorch::report::internal {
namespace {

// "Linear" for "torch::nn::LinearImpl".
std::string short_class(const torch::nn::Module& module) {
  std::string name = class_of(module);
  if (const std::size_t scope = name.rfind("::"); scope != std::string::npos) name = name.substr(scope + 2);
  if (name.ends_with("Impl")) name.resize(name.size() - 4);
  return name;
}

std::vector<std::string> axis_names(const DeviceMesh& mesh) {
  std::vector<std::string> names = mesh.names();
  for (std::int64_t axis = std::ssize(names); axis < mesh.ndim(); ++axis)
    names.push_back("axis " + std::to_string(axis));
  return names;
}

// The placements of a tensor on each axis of the page's mesh: its own mesh is that one, or a part of it along
// some of its named axes. Of another mesh nothing can be said there.
std::optional<AxisPlacements> placements_on(const DeviceMesh& page, const DTensor& tensor) {
  const DeviceMesh own = tensor.device_mesh();
  AxisPlacements placements(static_cast<std::size_t>(page.ndim()));
  if (own == page) {
    std::copy(tensor.placements().begin(), tensor.placements().end(), placements.begin());
    return placements;
  }
  const auto& names = page.names();
  if (own.names().empty()) return std::nullopt;
  for (std::size_t axis = 0; axis < own.names().size(); ++axis) {
    const auto found = std::find(names.begin(), names.end(), own.names()[axis]);
    if (found == names.end()) return std::nullopt;
    const auto at = static_cast<std::size_t>(found - names.begin());
    if (page.shape()[at] != own.shape()[axis]) return std::nullopt;
    placements[at] = tensor.placements()[axis];
  }
  return placements;
}

Json counts_json(const CommCounts& counts) {
  Json collectives = Json::object();
  for (const auto& [collective, s] : counts.statistics())
    collectives[std::string(to_string(collective))] = {s.count, s.bytes_sent, s.seconds};
  return collectives;
}

// Times of imagined ranks mean nothing.
bool is_timed(const CommCounts& counts) {
  if (is_initialized() && !traits_of(get_backend()).has_peers) return false;
  return std::any_of(counts.statistics().begin(), counts.statistics().end(),
                     [](const auto& entry) { return entry.second.seconds > 0; });
}

}  // namespace

ModuleTree tree_of(const torch::nn::Module& module, const ParallelizePlan* plan) {
  ModuleTree tree;
  tree.parts.push_back({"", short_class(module), ""});
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false))
    tree.parts.push_back({part.key(), short_class(*part.value()), ""});
  if (plan != nullptr) {
    for (const StyledModule& styled : styled_modules(module, *plan)) {
      for (ModulePart& part : tree.parts) {
        if (part.name == styled.name)
          part.style += (part.style.empty() ? "" : ", then ") + styled.style->to_string();
      }
    }
  }
  for (const auto& parameter : module.named_parameters())
    tree.parameters.emplace_back(parameter.key(), parameter.value());
  return tree;
}

std::optional<DeviceMesh> mesh_of(const ModuleTree& tree) {
  std::optional<DeviceMesh> largest;
  for (const auto& [name, tensor] : tree.parameters) {
    if (!tensor.defined() || !is_dtensor(tensor)) continue;
    const DeviceMesh mesh = DTensor(tensor).device_mesh();
    if (!largest || mesh.size() > largest->size()) largest = mesh;
  }
  return largest;
}

Json mesh_json(const DeviceMesh& mesh) {
  Json json{{"device", c10::DeviceTypeName(mesh.device_type(), /*lower_case=*/true)},
            {"names", axis_names(mesh)},
            {"shape", mesh.shape()}};
  const auto& ranks = mesh.ranks();
  for (std::size_t i = 0; i < ranks.size(); ++i) {
    if (ranks[i] == static_cast<std::int64_t>(i)) continue;
    json["ranks"] = ranks;
    break;
  }
  return json;
}

Json modules_json(const ModuleTree& tree, const std::optional<DeviceMesh>& mesh) {
  LayoutList layouts(mesh ? mesh->shape() : Shape{1});
  Json parts = Json::array(), parameters = Json::array();
  for (const ModulePart& part : tree.parts) {
    Json json{{"name", part.name}, {"type", part.type}};
    if (!part.style.empty()) json["style"] = part.style;
    parts.push_back(std::move(json));
  }
  for (const auto& [name, tensor] : tree.parameters) {
    if (!tensor.defined()) continue;
    const auto placements = mesh && is_dtensor(tensor) ? placements_on(*mesh, DTensor(tensor)) : std::nullopt;
    // Of a tensor on another mesh the page knows this rank's part only.
    const bool is_elsewhere = is_dtensor(tensor) && !placements;
    const Shape shape =
        is_elsewhere ? DTensor(tensor.detach()).to_local().sizes().vec() : tensor.sizes().vec();
    parameters.push_back({{"name", name},
                          {"layout", layouts.add(shape, placements)},
                          {"dtype", c10::toString(tensor.scalar_type())},
                          {"item_size", tensor.element_size()}});
  }
  return {{"root", tree.parts.empty() ? "" : tree.parts.front().type},
          {"parts", std::move(parts)},
          {"parameters", std::move(parameters)},
          {"layouts", layouts.json()}};
}

Json communication_json(const CommDebugMode& comm, const std::string& what,
                        const std::vector<Phase>& phases) {
  Json modules = Json::object();
  for (const auto& [path, counts] : comm.get_module_counts()) {
    modules[path] = {{"forward", counts_json(counts.forward)}, {"backward", counts_json(counts.backward)}};
  }
  Json list = Json::array();
  for (const Phase& phase : phases)
    list.push_back({{"name", phase.name}, {"collectives", counts_json(phase.counts)}});
  return {{"what", what},
          {"is_timed", is_timed(comm.get_comm_counts())},
          {"collectives", counts_json(comm.get_comm_counts())},
          {"phases", std::move(list)},
          {"modules", std::move(modules)}};
}

}  // namespace meshtorch::report::internal
