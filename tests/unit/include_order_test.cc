// Includes point one way: a folder of src includes itself and folders that come before it.
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>
#include <fstream>
#include <regex>
#include <vector>

namespace {

namespace fs = std::filesystem;

// As data flows; docs/architecture.md says what each holds.
const std::vector<std::string> kFloorPlan{
    "core",     "rules",         "propagate", "redistribute", "safetensors", "comm",     "mesh",
    "autograd", "tensor",        "operator",  "local",        "prove",       "dispatch", "decompose",
    "nn",       "data_parallel", "pipeline",  "debug",        "checkpoint"};

// The folder's place in the plan; one that has none is past its end.
std::ptrdiff_t floor_of(const std::string& path) {
  const std::string folder = path.substr(0, path.find('/'));
  return std::ranges::find(kFloorPlan, folder) - kFloorPlan.begin();
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
  for (const auto& entry : fs::recursive_directory_iterator(MESHTORCH_SOURCES)) {
    if (!entry.is_regular_file()) continue;
    const std::string file = fs::relative(entry.path(), MESHTORCH_SOURCES);
    std::ifstream source(entry.path());
    std::smatch match;
    for (std::string line; std::getline(source, line);) {
      if (!std::regex_search(line, match, include) || match[1].str().starts_with("meshtorch/")) continue;
      ++seen;
      EXPECT_LE(floor_of(match[1]), floor_of(file)) << file << " includes " << match[1];
    }
  }
  EXPECT_GT(seen, 300);
}

}  // namespace
