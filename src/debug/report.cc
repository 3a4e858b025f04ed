// The report page: collects the data of its sections and writes the file.
#include "meshtorch/report.h"

#include "debug/report/page.h"
#include "debug/report/timeline.h"
#include "debug/report_sections.h"
#include "meshtorch/process_group.h"
#include "meshtorch/version.h"
#include "safetensors/atomic_file.h"

namespace meshtorch::report {
using namespace internal;
namespace {

std::optional<ModuleTree> tree_in(const Contents& contents) {
  if (contents.module == nullptr) return std::nullopt;
  return tree_of(*contents.module, contents.plan);
}

}  // namespace

std::string internal::json_of(const Contents& contents, const std::optional<ModuleTree>& tree) {
  Json facts = Json::array();
  for (const auto& [name, value] : contents.facts) facts.push_back({name, value});
  Json data{{"meshtorch", MESHTORCH_VERSION}, {"title", contents.title}, {"facts", std::move(facts)}};
  if (is_initialized()) data["rank"] = get_rank();
  const std::optional<DeviceMesh> mesh = contents.mesh ? contents.mesh : tree ? mesh_of(*tree) : std::nullopt;
  if (mesh) data["mesh"] = mesh_json(*mesh);
  if (tree) data["modules"] = modules_json(*tree, mesh);
  if (contents.comm != nullptr)
    data["communication"] = communication_json(*contents.comm, contents.comm_of, contents.phases);
  if (contents.decisions != nullptr) data["redistributions"] = redistributions_json(*contents.decisions);
  if (!contents.traces.empty()) data["trace"] = timeline_json(contents.traces);
  if (!contents.steps.empty()) data["training"] = training_json(contents.steps);
  if (!contents.memory.empty()) data["memory"] = memory_json(contents.memory, contents.memory_note);
  // Names may hold any bytes.
  return data.dump(-1, ' ', /*ensure_ascii=*/false, Json::error_handler_t::replace);
}

void internal::write_page(const std::string& path, const Contents& contents,
                          const std::optional<ModuleTree>& tree) {
  const std::string page = page_of(contents.title, json_of(contents, tree));
  try {
    safetensors::internal::AtomicFile file(path);
    file.append(page);
    file.commit();
  } catch (const std::runtime_error& error) {
    TORCH_CHECK_VALUE(false, "meshtorch: the report cannot be written to ", path, "\n  ", error.what(),
                      "\n  do: name a file in a folder that exists and can be written");
  }
}

void write(const std::string& path, const Contents& contents) {
  write_page(path, contents, tree_in(contents));
}

std::string html(const Contents& contents) { return page_of(contents.title, json(contents)); }

std::string json(const Contents& contents) { return json_of(contents, tree_in(contents)); }

}  // namespace meshtorch::report
