// parallelize_module: finds the modules that a plan's patterns name, and applies the styles.
#include "meshtorch/parallelize.h"

#include <c10/util/Exception.h>
#include <fnmatch.h>

#include <algorithm>
#include <numeric>

#include "mesh/agree_on_mesh.h"
#include "mesh/mesh_impl.h"
#include "nn/hookable_module.h"
#include "nn/plan_axis.h"
#include "nn/styled_modules.h"

namespace meshtorch {
using namespace internal;
namespace {

struct Match {
  std::string name;
  torch::nn::Module* module;
};

// Adds the modules below `module` whose names match the parts of the pattern, in the order of registration.
void find_matches(torch::nn::Module& module, const std::string& name, std::string_view pattern,
                  std::vector<Match>& found) {
  if (pattern.empty()) {
    found.push_back({name, &module});
    return;
  }
  const std::size_t dot = pattern.find('.');
  const std::string part(pattern.substr(0, dot));
  const std::string_view rest = dot == std::string_view::npos ? std::string_view() : pattern.substr(dot + 1);
  for (const auto& child : module.named_children()) {
    if (::fnmatch(part.c_str(), child.key().c_str(), FNM_NOESCAPE) != 0) continue;
    find_matches(*child.value(), name.empty() ? child.key() : name + "." + child.key(), rest, found);
  }
}

std::vector<Match> matches_of(const torch::nn::Module& module, const std::string& pattern) {
  std::vector<Match> found;
  find_matches(const_cast<torch::nn::Module&>(module), "", pattern, found);
  return found;
}

std::size_t edit_distance(const std::string& a, const std::string& b) {
  std::vector<std::size_t> row(b.size() + 1);
  std::iota(row.begin(), row.end(), 0);
  for (std::size_t i = 1; i <= a.size(); ++i) {
    std::size_t diagonal = row[0];
    row[0] = i;
    for (std::size_t j = 1; j <= b.size(); ++j) {
      const std::size_t replaced = diagonal + (a[i - 1] == b[j - 1] ? 0 : 1);
      diagonal = row[j];
      row[j] = std::min({row[j] + 1, row[j - 1] + 1, replaced});
    }
  }
  return row[b.size()];
}

std::string nearest_names(const torch::nn::Module& module, const std::string& pattern) {
  constexpr std::size_t kShown = 3;
  std::vector<std::pair<std::size_t, std::string>> names;
  for (const auto& part : module.named_modules(/*name_prefix=*/"", /*include_self=*/false)) {
    names.emplace_back(edit_distance(pattern, part.key()), part.key());
  }
  std::stable_sort(names.begin(), names.end(),
                   [](const auto& a, const auto& b) { return a.first < b.first; });
  std::vector<std::string> shown;
  for (std::size_t i = 0; i < std::min(kShown, names.size()); ++i) shown.push_back(names[i].second);
  return shown.empty() ? "the module has no children" : c10::Join(", ", shown);
}

std::string text_of(const ParallelizePlan& plan) {
  std::string text;
  for (const auto& [pattern, style] : plan.entries())
    text.append(text.empty() ? "" : ", ").append(pattern).append(": ").append(style->to_string());
  return text;
}

}  // namespace

DeviceMesh internal::one_axis_of(const DeviceMesh& mesh, const std::string& axis) {
  if (!axis.empty()) return mesh[axis];
  if (mesh.ndim() == 1) return mesh;
  const auto& names = mesh.names();
  TORCH_CHECK_VALUE(std::find(names.begin(), names.end(), "tp") != names.end(),
                    "meshtorch: parallelize_module works on one axis, the mesh has ", mesh.ndim(),
                    "\n  mesh: ", mesh.to_string(), "\n  do: pass mesh[\"name\"], or {.axis = \"name\"}");
  return mesh["tp"];
}

torch::nn::Module& parallelize_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                      const ParallelizePlan& plan, const ParallelizeOptions& options) {
  const DeviceMesh axis = one_axis_of(mesh, options.axis);
  agree_on(impl_of(axis), "parallelize_module(" + text_of(plan) + ")");
  for (const auto& [pattern, style] : plan.entries()) {
    const std::vector<Match> found = matches_of(module, pattern);
    if (found.empty()) {
      const std::string message = c10::str("meshtorch: the plan's pattern \"", pattern,
                                           "\" matches no module\n  its style: ", style->to_string(),
                                           "\n  near names: ", nearest_names(module, pattern));
      TORCH_CHECK_VALUE(options.warn_if_unmatched, message,
                        "\n  do: mend the pattern, or pass {.warn_if_unmatched = true}");
      TORCH_WARN(message);
    }
    for (const Match& match : found)
      style->apply(*match.module, axis, {.module_name = match.name, .src_data_rank = options.src_data_rank});
  }
  return module;
}

std::vector<StyledModule> internal::styled_modules(const torch::nn::Module& module,
                                                   const ParallelizePlan& plan) {
  std::vector<StyledModule> styled;
  for (const auto& [pattern, style] : plan.entries()) {
    for (const Match& match : matches_of(module, pattern)) styled.push_back({match.name, style});
  }
  return styled;
}

std::string describe_plan(const torch::nn::Module& module, const ParallelizePlan& plan) {
  std::vector<std::array<std::string, 3>> rows;
  for (const auto& [pattern, style] : plan.entries()) {
    const std::vector<Match> found = matches_of(module, pattern);
    for (const Match& match : found)
      rows.push_back(
          {match.name.empty() ? "(itself)" : match.name, class_of(*match.module), style->to_string()});
    if (found.empty()) rows.push_back({pattern, "no such module", style->to_string()});
  }
  std::array<std::size_t, 2> widths{};
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    for (std::size_t i = 0; i < widths.size(); ++i)
      text += row[i] + std::string(widths[i] - row[i].size() + 2, ' ');
    text += row[2] + "\n";
  }
  return text;
}

}  // namespace meshtorch
