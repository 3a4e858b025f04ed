// One rank of a large world, on the fake backend: what a mesh costs to make, a step that was never run and
// one that was, and how memory grows over many operators whose shapes all differ.
#include <fstream>
#include <iostream>
#include <nlohmann/json.hpp>
#include <string>

#include "small_step.h"
#include "stopwatch.h"

namespace mt = meshtorch;

namespace {

constexpr int kOperators = 100'000;

double resident_megabytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);) {
    if (line.starts_with("VmRSS:")) return std::stod(line.substr(6)) / 1024;
  }
  return 0;
}

// Memory after each fifth of the operators; no two have the same shape.
std::vector<double> memory_over_varied_operators(const mt::DeviceMesh& mesh) {
  std::vector<double> megabytes;
  for (int i = 0; i < kOperators; ++i) {
    const mt::DTensor x = mt::ones({1 + i % 1000, 1 + i / 1000}, mesh, {mt::Shard(0), mt::Replicate()});
    torch::relu(x);
    if ((i + 1) % (kOperators / 5) == 0) megabytes.push_back(resident_megabytes());
  }
  return megabytes;
}

nlohmann::ordered_json measure(int64_t ranks) {
  mt::init_process_group(
      {.backend = "fake", .init_method = "tcp://none:0", .rank = 0, .world_size = static_cast<int>(ranks)});
  nlohmann::ordered_json row{{"ranks", ranks}};
  {
    const Stopwatch making;
    const auto mesh = mt::init_device_mesh(torch::kCPU, {ranks / 8, 8}, {"dp", "tp"});
    const auto tp = mesh["tp"];
    row["mesh_ms"] = making.milliseconds();
    small_step::Step step(tp);
    const Stopwatch cold;
    step.run();
    row["cold_step_ms"] = cold.milliseconds();
    double least = 1e9;
    for (int i = 0; i < 50; ++i) {
      const Stopwatch cached;
      step.run();
      least = std::min(least, cached.milliseconds());
    }
    row["cached_step_ms"] = least;
    row["megabytes_before"] = resident_megabytes();
    row["megabytes"] = memory_over_varied_operators(mesh);
    row["decisions_kept"] = mt::decision_cache_statistics(mesh).size;
  }
  mt::destroy_process_group();
  return row;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2) {
    std::cerr << "usage: scale_benchmark RESULTS.json\n";
    return 2;
  }
  at::set_num_threads(1);
  nlohmann::ordered_json rows = nlohmann::ordered_json::array();
  for (const int64_t ranks : {8, 1024, 4096}) {
    rows.push_back(measure(ranks));
    std::cout << rows.back().dump() << std::endl;
  }
  std::ofstream(argv[1]) << nlohmann::ordered_json{{"operators", kOperators}, {"rows", rows}}.dump(1) << "\n";
}
