// What CommDebugMode counted, as tables and JSON; and the sharding of parameters.
#include <ATen/core/Tensor.h>
#include <torch/nn/module.h>

#include <algorithm>
#include <array>
#include <nlohmann/json.hpp>
#include <set>

#include "core/number_text.h"
#include "debug/operator_notes.h"
#include "debug/sharding_table.h"
#include "meshtorch/debug.h"
#include "meshtorch/dtensor.h"

namespace meshtorch {
using namespace internal;
namespace {

using Json = nlohmann::ordered_json;
using Rows = std::vector<std::vector<std::string>>;

// Columns as wide as they need to be; all but the first `left` aligned to the right.
std::string aligned(const Rows& rows, std::size_t left) {
  std::vector<std::size_t> widths;
  for (const auto& row : rows) {
    widths.resize(std::max(widths.size(), row.size()));
    for (std::size_t i = 0; i < row.size(); ++i) widths[i] = std::max(widths[i], row[i].size());
  }
  std::string text;
  for (const auto& row : rows) {
    std::string line;
    for (std::size_t i = 0; i < row.size(); ++i) {
      const std::string fill(widths[i] - row[i].size(), ' ');
      line += (i > 0 ? "  " : "") + (i < left ? row[i] + fill : fill + row[i]);
    }
    line.erase(line.find_last_not_of(' ') + 1);
    text += line + "\n";
  }
  return text;
}

Json json_of(const CommCounts& counts) {
  Json collectives = Json::object();
  for (const auto& [collective, s] : counts.statistics()) {
    collectives[std::string(to_string(collective))] = {
        {"count", s.count}, {"bytes_sent", s.bytes_sent}, {"seconds", s.seconds}};
  }
  return collectives;
}

// What one phase counted beyond what its outermost modules did.
CommCounts outside_modules(const CommCounts& all, const std::map<std::string, ModuleCommCounts>& modules,
                           CommCounts ModuleCommCounts::* phase) {
  CommCounts rest = all;
  for (const auto& module : modules) {
    const auto is_inside = [&](const auto& other) { return module.first.starts_with(other.first + "."); };
    if (std::any_of(modules.begin(), modules.end(), is_inside)) continue;
    for (const auto& [collective, s] : (module.second.*phase).statistics())
      rest.at(collective).count -= s.count;
  }
  return rest;
}

const char* phase_of(const OperatorNote& note) { return note.is_backward ? "backward" : "forward"; }

Rows operator_rows(const OperatorNotes& notes, TableDetail detail) {
  Rows rows{{"module", "phase", "operator", "operands", "calls"}};
  for (const OperatorNote& note : notes.notes()) {
    if (note.call.detail > detail) continue;
    rows.push_back({note.module.empty() ? "(outside)" : note.module, phase_of(note), note.call.name,
                    note.call.operands, std::to_string(note.calls)});
  }
  return rows;
}

Json json_of(const OperatorNotes& notes, TableDetail detail) {
  Json operators = Json::array();
  for (const OperatorNote& note : notes.notes()) {
    if (note.call.detail > detail) continue;
    operators.push_back({{"module", note.module},
                         {"phase", phase_of(note)},
                         {"operator", note.call.name},
                         {"operands", note.call.operands},
                         {"calls", note.calls}});
  }
  return operators;
}

}  // namespace

std::string CommDebugMode::table() const {
  const auto row = [](std::string_view name, const CommStatistics& s) {
    std::array<char, 128> line{};
    std::snprintf(line.data(), line.size(), "%-34.*s %7lld %15lld %10.3f\n", static_cast<int>(name.size()),
                  name.data(), static_cast<long long>(s.count), static_cast<long long>(s.bytes_sent),
                  s.seconds * 1e3);
    return std::string(line.data());
  };
  std::string text = "collective                           count      bytes sent    time ms\n";
  CommStatistics sum;
  for (const auto& [collective, statistics] : get_comm_counts().statistics()) {
    text += row(to_string(collective), statistics);
    sum.count += statistics.count;
    sum.bytes_sent += statistics.bytes_sent;
    sum.seconds += statistics.seconds;
  }
  return text + row("total", sum);
}

std::string CommDebugMode::module_table(TableDetail detail) const {
  std::set<Collective> used;
  for (const auto& [collective, statistics] : get_comm_counts().statistics()) used.insert(collective);
  Rows rows{{"module", "phase"}};
  for (const Collective collective : used) rows[0].emplace_back(to_string(collective));
  rows[0].emplace_back("total");
  const auto add = [&](const std::string& name, const char* phase, const CommCounts& counts) {
    std::vector<std::string> row{name, phase};
    for (const Collective collective : used) row.push_back(std::to_string(counts[collective]));
    row.push_back(std::to_string(counts.total()));
    rows.push_back(std::move(row));
  };
  add("(all)", "both", get_comm_counts());
  for (const auto& [path, counts] : get_module_counts()) {
    add(path, "forward", counts.forward);
    add(path, "backward", counts.backward);
  }
  const ModuleCommCounts& passes = get_pass_counts();
  add("(outside)", "forward",
      outside_modules(passes.forward, get_module_counts(), &ModuleCommCounts::forward));
  add("(outside)", "backward",
      outside_modules(passes.backward, get_module_counts(), &ModuleCommCounts::backward));
  std::string text = aligned(rows, 2);
  if (detail != TableDetail::counts) text += "\n" + aligned(operator_rows(operator_notes(), detail), 4);
  return text;
}

std::string CommDebugMode::json(TableDetail detail) const {
  Json modules = Json::object();
  for (const auto& [path, counts] : get_module_counts()) {
    modules[path] = {{"forward", json_of(counts.forward)}, {"backward", json_of(counts.backward)}};
  }
  Json document{{"total_count", get_total_counts()},
                {"collectives", json_of(get_comm_counts())},
                {"modules", std::move(modules)}};
  if (detail != TableDetail::counts) document["operators"] = json_of(operator_notes(), detail);
  return document.dump(2);
}

std::string internal::sharding_table(const NamedTensors& parameters) {
  Rows rows{{"parameter", "shape", "type", "placements", "this rank's shape"}};
  for (const auto& [name, tensor] : parameters) {
    if (!tensor.defined()) continue;
    const bool is_split = is_dtensor(tensor);
    rows.push_back({name, shape_text(tensor.sizes()), c10::toString(tensor.scalar_type()),
                    is_split ? to_string(DTensor(tensor).placements()) : "plain",
                    shape_text(is_split ? DTensor(tensor.detach()).to_local().sizes() : tensor.sizes())});
  }
  return aligned(rows, 5);
}

std::string sharding_table(const torch::nn::Module& module) {
  NamedTensors parameters;
  for (const auto& parameter : module.named_parameters()) {
    parameters.emplace_back(parameter.key(), parameter.value());
  }
  return sharding_table(parameters);
}

}  // namespace meshtorch
