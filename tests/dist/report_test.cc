// What the report page shows: decisions, memory, traces, and its data as a whole.
#include <meshtorch/report.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <nlohmann/json.hpp>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using nlohmann::json;

struct TwoLayersImpl : torch::nn::Module {
  mt::nn::Linear up = register_module("up", mt::nn::Linear(6, 10));
  mt::nn::Linear down = register_module("down", mt::nn::Linear(10, 6));
  torch::Tensor forward(const torch::Tensor& x) { return down(torch::relu(up(x))); }
};
MESHTORCH_MODULE(TwoLayers);

mt::ParallelizePlan two_layers_plan() {
  return {{"up", mt::ColwiseParallel()}, {"down", mt::RowwiseParallel()}};
}

TwoLayers split_layers(const mt::DeviceMesh& mesh) {
  TwoLayers net;
  mt::parallelize_module(*net, mesh, two_layers_plan());
  return net;
}

TEST(DecisionLog, AnOperatorsMoveHasItsOptionsWithPrices) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {4}, {"tp"});
    const mt::DTensor a = mt::distribute_tensor(torch::ones({8, 4}), mesh, {mt::Shard(0)});
    const mt::DTensor b = mt::distribute_tensor(torch::ones({4, 12}), mesh, {mt::Shard(0)});
    torch::mm(a, b);  // decided before the log begins: the reason is found all the same
    mt::DecisionLog log;
    const mt::CommDebugMode comm;
    for (int i = 0; i < 3; ++i) torch::mm(a, b);
    log.stop();
    torch::mm(a, b);
    ASSERT_EQ(log.entries().size(), 1);
    const auto& entry = log.entries()[0];
    EXPECT_EQ(entry.op, "mm");
    EXPECT_EQ(entry.argument, "mat2");
    EXPECT_EQ(entry.count, 3);
    EXPECT_EQ(entry.shape, (std::vector<int64_t>{4, 12}));
    EXPECT_EQ(entry.from, mt::Placements{mt::Shard(0)});
    EXPECT_EQ(entry.to, mt::Placements{mt::Replicate()});
    EXPECT_EQ(entry.steps, std::vector<std::string>{"all_gather over tp"});
    EXPECT_EQ(
        entry.count * entry.bytes_sent,
        comm.get_comm_counts().statistics().at(mt::Collective::all_gather_into_tensor).bytes_sent / 4 * 3);
    ASSERT_TRUE(entry.reason);
    EXPECT_EQ(entry.reason->axes.at(0).axis, "tp");
    const auto& options = entry.reason->axes.at(0).options;
    const auto chosen =
        std::find_if(options.begin(), options.end(), [](const auto& o) { return o.is_chosen; });
    ASSERT_NE(chosen, options.end());
    EXPECT_TRUE(chosen->communicates);
    EXPECT_GT(options.size(), 2);
    for (const auto& other : options) EXPECT_LE(chosen->seconds, other.seconds) << other.option;
    EXPECT_NE(log.table().find("mm mat2 (4, 12) [S(0)] -> [R]  3 x"), std::string::npos) << log.table();
    EXPECT_NE(log.table().find("; next best "), std::string::npos) << log.table();
  });
}

TEST(DecisionLog, WhatWasAskedForNamesTheModule) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2}, {"tp"});
    TwoLayers net = split_layers(mesh);
    const mt::DecisionLog log;
    net(torch::ones({3, 6})).sum().backward();
    bool is_found = false;
    for (const auto& entry : log.entries()) {
      if (entry.module != "TwoLayers.down" || entry.is_backward || entry.bytes_sent == 0) continue;
      EXPECT_EQ(entry.op, "");
      EXPECT_EQ(entry.from, mt::Placements{mt::Partial()});
      is_found = true;
    }
    EXPECT_TRUE(is_found) << log.table();
  });
}

TEST(CommDebugOnRanks, TimeIsCountedByModuleToo) {
  on_ranks(2, [](int) {
    TwoLayers net = split_layers(mt::init_device_mesh(torch::kCPU, {2}, {"tp"}));
    const mt::CommDebugMode comm;
    net(torch::ones({3, 6}).requires_grad_()).sum().backward();
    const auto& modules = comm.get_module_counts();
    const double down =
        modules.at("TwoLayers.down").forward.statistics().at(mt::Collective::all_reduce).seconds;
    const double all = modules.at("TwoLayers").forward.statistics().at(mt::Collective::all_reduce).seconds;
    EXPECT_GT(down, 0);
    EXPECT_LE(down, all);
    EXPECT_LE(all, comm.get_comm_counts().statistics().at(mt::Collective::all_reduce).seconds);
  });
}

TEST(Trace, GatheredEventsKnowTheirModule) {
  on_ranks(3, [](int) {
    TwoLayers net = split_layers(mt::init_device_mesh(torch::kCPU, {3}, {"tp"}));
    mt::TraceMode trace;
    net(torch::ones({3, 6}).requires_grad_()).sum().backward();
    const std::vector<std::string> texts = trace.gather();
    ASSERT_EQ(texts.size(), 3);
    const json page = json::parse(mt::report::json({.traces = texts})).at("trace");
    ASSERT_EQ(page.at("ranks").size(), 3);
    const auto& modules = page.at("modules");
    EXPECT_NE(std::find(modules.begin(), modules.end(), "TwoLayers.down"), modules.end()) << modules;
    constexpr int kCollective = 3;
    for (const json& rank : page.at("ranks")) {
      int collectives = 0;
      const json& events = rank.at("events");
      for (std::size_t i = 0; i < events.size(); i += 6) collectives += events[i + 3] == kCollective;
      EXPECT_GE(collectives, 2) << "one forward, one backward";
    }
  });
}

TEST(Memory, TheEstimateForEachRankIsWhatItHas) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    torch::nn::Linear net(5, 7);  // neither is a multiple of 2
    mt::replace_data(net->weight,
                     mt::distribute_tensor(net->weight.detach(), mesh, {mt::Shard(1), mt::Shard(0)}));
    mt::replace_data(net->bias,
                     mt::distribute_tensor(net->bias.detach(), mesh, {mt::Shard(0), mt::Shard(0)}));
    const std::vector<mt::RankMemory> all =
        mt::estimate_memory(*net, {.optimizer_numbers = 2, .activations = 9});
    ASSERT_EQ(all.size(), 4);
    const mt::RankMemory mine = mt::memory_of(*net);
    EXPECT_EQ(all[rank].rank, rank);
    EXPECT_EQ(all[rank].parameters, mine.parameters);
    EXPECT_EQ(all[rank].gradients, mine.parameters);
    EXPECT_EQ(all[rank].optimizer, 2 * mine.parameters);
    EXPECT_EQ(all[rank].activations, 9);
    const std::vector<mt::RankMemory> gathered = mt::gather_memory(mine);
    for (int r = 0; r < 4; ++r) EXPECT_EQ(gathered.at(r).parameters, all[r].parameters);
    EXPECT_EQ(mt::estimate_memory(*net, {.most_ranks = 2}).size(), 2) << "a sample";
  });
}

TEST(Memory, OptimizersAndGradientsAreCounted) {
  torch::nn::Linear net(torch::nn::LinearOptions(10, 3).bias(false));
  torch::optim::AdamW adam(net->parameters(), torch::optim::AdamWOptions(1e-3));
  EXPECT_EQ(mt::memory_of(*net, &adam).optimizer, 0);
  net(torch::ones({2, 10})).sum().backward();
  adam.step();
  const mt::RankMemory memory = mt::memory_of(*net, &adam);
  EXPECT_EQ(memory.parameters, 120);
  EXPECT_EQ(memory.gradients, 120);
  EXPECT_EQ(memory.optimizer, 240);
}

TEST(Memory, KeptIsWhatBackwardNeeds) {
  const torch::Tensor x = torch::ones({1000}).requires_grad_();
  const mt::KeptMemory kept;
  torch::Tensor y = x.exp();  // saves its result
  EXPECT_EQ(kept.bytes(), 4000);
  (y + 1).sum();  // nothing of it stays
  EXPECT_EQ(kept.bytes(), 4000);
  const torch::Tensor view = x.view({10, 100});  // shares what was there before
  EXPECT_EQ(kept.bytes(), 4000);
  torch::Tensor z = y.view({10, 100}) * 2;
  EXPECT_EQ(kept.bytes(), 8000);
  y = z = torch::Tensor();
  EXPECT_EQ(kept.bytes(), 0);
}

TEST(Memory, KeptOnSplitTensorsIsThisRanksPart) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    const mt::DTensor x = mt::distribute_tensor(torch::ones({1000}).requires_grad_(), mesh, {mt::Shard(0)});
    const mt::KeptMemory kept;
    const torch::Tensor y = x.exp();
    EXPECT_EQ(kept.bytes(), 2000);
  });
}

TEST(Memory, ThePeakHoldsWhatWasFreedSince) {
  mt::PeakMemory peak;
  {
    const torch::Tensor large = torch::empty({1 << 20});
  }
  const torch::Tensor small = torch::empty({1 << 10});
  EXPECT_GE(peak.bytes(), 4 << 20);
  EXPECT_LT(peak.bytes(), 5 << 20);
  peak.restart();
  EXPECT_GE(peak.bytes(), 4 << 10);
  EXPECT_LT(peak.bytes(), 1 << 20);
}

TEST(Report, SectionsWithoutDataAreLeftOut) {
  const json data = json::parse(mt::report::json({.title = "nothing"}));
  EXPECT_EQ(data.at("title"), "nothing");
  for (const char* section :
       {"mesh", "modules", "communication", "redistributions", "trace", "training", "memory"})
    EXPECT_FALSE(data.contains(section)) << section;
}

TEST(Report, HoldsTheModulesWithTheirLayoutsAndStyles) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    TwoLayers net = split_layers(mesh);
    const mt::ParallelizePlan plan = two_layers_plan();
    const json data = json::parse(mt::report::json({.mesh = mesh, .module = net.get(), .plan = &plan}));
    EXPECT_EQ(data.at("rank"), rank);
    EXPECT_EQ(data.at("mesh").dump(), R"({"device":"cpu","names":["dp","tp"],"shape":[2,2]})");
    const json& modules = data.at("modules");
    EXPECT_EQ(modules.at("root"), "TwoLayers");
    EXPECT_EQ(modules.at("parts").at(1).at("name"), "up");
    EXPECT_EQ(modules.at("parts").at(1).at("type"), "Linear");
    EXPECT_EQ(modules.at("parts").at(1).at("style"), "ColwiseParallel(use_local_output=true)");
    const json& weight = modules.at("parameters").at(0);
    EXPECT_EQ(weight.at("name"), "up.weight");
    // It lies on tp alone, as parallelize_module left it.
    const json& layout = modules.at("layouts").at(weight.at("layout").get<std::size_t>());
    EXPECT_EQ(layout.at("shape"), json({10, 6}));
    EXPECT_EQ(layout.at("placements"), json({"-", "S(0)"}));
    EXPECT_EQ(layout.at("dims").at(0).dump(), R"({"axes":[1],"held":[[0,5],[5,10]]})");
  });
}

TEST(Report, RanksOfAMeshThatAreNotInOrderAreListed) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{2, 0});
    EXPECT_EQ(json::parse(mt::report::json({.mesh = mesh})).at("mesh").at("ranks"), json({2, 0}));
  });
}

TEST(Report, NamesMayHoldAnything) {
  torch::nn::Module net;
  net.register_parameter("</script><b>\xff", torch::ones({2}));
  const std::string page = mt::report::html({.title = "<i>", .module = &net});
  EXPECT_EQ(page.find("</script><b>"), std::string::npos);
  EXPECT_EQ(page.find("<i>"), std::string::npos);
}

TEST(Report, LongTrainingsAreMeansAndWhatIsNotFiniteIsNull) {
  std::vector<mt::report::TrainingStep> steps;
  for (int i = 1; i <= 10'000; ++i) steps.push_back({.step = i, .loss = i == 4 ? NAN : i});
  const json training = json::parse(mt::report::json({.steps = steps})).at("training");
  EXPECT_EQ(training.at("mean_of"), 3);
  EXPECT_EQ(training.at("step").size(), 3334);
  EXPECT_EQ(training.at("loss").at(0), 2);
  EXPECT_TRUE(training.at("loss").at(1).is_null());
  EXPECT_EQ(training.at("step").back(), 10'000);
}

TEST(Report, AFileThatCannotBeWrittenIsAnError) {
  const std::string error = error_of([] { mt::report::write("no/such/folder/page.html", {}); });
  EXPECT_TRUE(error.starts_with("meshtorch: the report cannot be written to no/such/folder/page.html\n"))
      << error;
  EXPECT_TRUE(error.ends_with("\n  do: name a file in a folder that exists and can be written")) << error;
}

TEST(Report, TheFileIsThePage) {
  const auto file =
      std::filesystem::temp_directory_path() / ("report_test." + std::to_string(getpid()) + ".html");
  mt::report::write(file.string(), {.title = "a page"});
  std::ifstream in(file);
  const std::string text((std::istreambuf_iterator<char>(in)), {});
  std::filesystem::remove(file);
  EXPECT_EQ(text, mt::report::html({.title = "a page"}));
  EXPECT_NE(text.find("<title>a page</title>"), std::string::npos);
}

}  // namespace
}  // namespace meshtorch::testing
