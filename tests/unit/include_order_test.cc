// Includes point one way: a folder of src includes itself and folders that come before it. So do public
// headers, by where their functions are defined, and definitions: what a header of one folder declares is not
// defined in a later one.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <functional>
#include <map>
#include <regex>
#include <set>
#include <sstream>
#include <vector>

namespace {

namespace fs = std::filesystem;

// As data flows; docs/architecture.md says what each holds.
const std::vector<std::string> kFloorPlan{
    "core",      "rules",         "propagate", "redistribute", "safetensors", "runtime",   "kernels",
    "signature", "liveness",      "agreement", "backends",     "world",       "transport", "collectives",
    "mesh",      "tensor",        "operator",  "local",        "prove",       "dispatch",  "decompose",
    "nn",        "data_parallel", "pipeline",  "debug",        "checkpoint"};
// The table of decompositions is read while LibTorch loads the library, so that nobody above can hand it
// down.
const std::set<std::string> kDefinedAbove{"decompositions"};

struct Source {
  std::string file;  // below src, or "meshtorch/dtensor.h"
  std::string text;
  bool is_header() const { return file.ends_with(".h"); }
};

// The folder's place in the plan; one that has none is past its end.
std::ptrdiff_t floor_of(const std::string& path) {
  const std::string folder = path.substr(0, path.find('/'));
  return std::ranges::find(kFloorPlan, folder) - kFloorPlan.begin();
}

std::vector<Source> sources_below(const fs::path& folder) {
  std::vector<Source> found;
  for (const auto& entry : fs::recursive_directory_iterator(folder)) {
    const std::string end = entry.path().extension();
    if (!entry.is_regular_file() || (end != ".h" && end != ".cc")) continue;
    std::stringstream text;
    text << std::ifstream(entry.path()).rdbuf();
    found.push_back({fs::relative(entry.path(), folder), text.str()});
  }
  return found;
}

const std::vector<Source>& library_sources() {
  static const std::vector<Source> all = sources_below(MESHTORCH_SOURCES);
  return all;
}

const std::vector<Source>& public_headers() {
  static const std::vector<Source> all = sources_below(fs::path(MESHTORCH_SOURCES).parent_path() / "include");
  return all;
}

// Calls `visit` with each line and whether it is in an unnamed namespace.
void for_each_line(const std::string& text,
                   const std::function<void(const std::string& line, bool is_unnamed)>& visit) {
  bool is_unnamed = false;
  std::istringstream lines(text);
  for (std::string line; std::getline(lines, line);) {
    if (line == "namespace {") is_unnamed = true;
    if (line == "}  // namespace") is_unnamed = false;
    visit(line, is_unnamed);
  }
}

// "class Handler" and "decide()": the classes and functions that a header declares, as far as a look at its
// lines tells.
std::set<std::string> declared_in(const Source& header) {
  static const std::regex type("^(?:class|struct)(?: MESHTORCH_\\w+)? (\\w+)[^;]*\\{");
  static const std::regex function(
      "^(?!return|class|struct|enum|using|namespace|inline|constexpr|template|friend)[A-Za-z][\\w:<>,&* ]*[ "
      "&*](\\w+)\\(");
  std::set<std::string> names;
  for_each_line(header.text, [&](const std::string& line, bool) {
    std::smatch match;
    if (std::regex_search(line, match, type)) names.insert("class " + match[1].str());
    if (std::regex_search(line, match, function)) names.insert(match[1].str());
  });
  return names;
}

// The same of what a source defines: members by their class.
std::set<std::string> defined_in(const Source& source) {
  static const std::regex member("^(?=[A-Za-z])[^=;\"]*?\\b(?!internal|std|detail)(\\w+)::~?\\w+\\(");
  static const std::regex function(
      "^(?!return|class|struct|enum|using|namespace|static|constexpr|template|extern|TORCH|else|if|for)[A-Za-"
      "z][\\w:<>,&* ]*[ &*](?:internal::|detail::)?(\\w+)\\(");
  std::set<std::string> names;
  for_each_line(source.text, [&](const std::string& line, bool is_unnamed) {
    std::smatch match;
    if (is_unnamed || line.ends_with(';')) return;
    if (std::regex_search(line, match, member)) {
      names.insert("class " + match[1].str());
    } else if (std::regex_search(line, match, function)) {
      names.insert(match[1]);
    }
  });
  return names;
}

// The first floor on which a header of src declares each name.
const std::map<std::string, std::ptrdiff_t>& floors_of_declarations() {
  static const auto all = [] {
    std::map<std::string, std::ptrdiff_t> floors;
    for (const Source& header : library_sources()) {
      if (!header.is_header()) continue;
      for (const std::string& name : declared_in(header)) {  // of several the highest: they are overloads
        auto& floor = floors.try_emplace(name, floor_of(header.file)).first->second;
        floor = std::max(floor, floor_of(header.file));
      }
    }
    return floors;
  }();
  return all;
}

TEST(FloorPlan, EveryFolderIsInIt) {
  for (const auto& entry : fs::directory_iterator(MESHTORCH_SOURCES)) {
    if (!entry.is_directory()) continue;
    EXPECT_LT(floor_of(entry.path().filename()), std::ssize(kFloorPlan)) << entry.path().filename();
  }
}

TEST(FloorPlan, IncludesPointOneWay) {
  const std::regex include("^#include \"([a-z_]+/[^\"]+)\"");
  int seen = 0;
  for (const Source& source : library_sources()) {
    for_each_line(source.text, [&](const std::string& line, bool) {
      std::smatch match;
      if (!std::regex_search(line, match, include) || match[1].str().starts_with("meshtorch/")) return;
      ++seen;
      EXPECT_LE(floor_of(match[1]), floor_of(source.file)) << source.file << " includes " << match[1];
    });
  }
  EXPECT_GT(seen, 300);
}

TEST(FloorPlan, DefinitionsLieWhereTheirHeaderDoes) {
  std::set<std::string> in_public_headers;
  for (const Source& header : public_headers()) in_public_headers.merge(declared_in(header));
  int seen = 0;
  for (const Source& source : library_sources()) {
    if (source.is_header()) continue;
    for (const std::string& name : defined_in(source)) {
      const auto declared = floors_of_declarations().find(name);
      if (declared == floors_of_declarations().end() || in_public_headers.contains(name) ||
          kDefinedAbove.contains(name))
        continue;
      ++seen;
      EXPECT_LE(floor_of(source.file), declared->second)
          << source.file << " defines " << name << ", which a header of "
          << kFloorPlan.at(static_cast<std::size_t>(declared->second)) << " declares";
    }
  }
  EXPECT_GT(seen, 300);
}

TEST(FloorPlan, PublicHeadersBelongToTheFolderThatDefinesThem) {
  // The first floor on which something of each public header is defined. What src declares under the same
  // name is something else.
  std::map<std::string, std::ptrdiff_t> floors;
  std::map<std::string, std::set<std::string>> defined;
  for (const Source& source : library_sources()) {
    if (!source.is_header()) defined[source.file] = defined_in(source);
  }
  for (const Source& header : public_headers()) {
    const std::set<std::string> names = declared_in(header);
    for (const auto& [file, definitions] : defined) {
      const auto is_of_header = [&](const std::string& name) {
        return names.contains(name) && !floors_of_declarations().contains(name);
      };
      if (!std::ranges::any_of(definitions, is_of_header)) continue;
      auto& floor = floors.try_emplace(header.file, floor_of(file)).first->second;
      floor = std::min(floor, floor_of(file));
    }
  }
  EXPECT_GT(floors.size(), 25);
  const std::regex include("^#include \"(meshtorch/[^\"]+)\"");
  for (const Source& source : library_sources()) {
    for_each_line(source.text, [&](const std::string& line, bool) {
      std::smatch match;
      if (!std::regex_search(line, match, include)) return;
      const auto floor = floors.find(match[1]);
      if (floor == floors.end()) return;
      EXPECT_LE(floor->second, floor_of(source.file)) << source.file << " includes " << match[1];
    });
  }
}

}  // namespace
