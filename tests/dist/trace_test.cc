// TraceMode: operators, collectives and scopes of each rank, in one file that trace viewers read.
#include <ATen/record_function.h>
#include <meshtorch/trace.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using nlohmann::json;

// A product of split matrices, whose result is a pending sum, made whole; then backward.
void work() {
  const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {mt::get_world_size()});
  const mt::DTensor a = mt::distribute_tensor(torch::ones({3, 4}).requires_grad_(), mesh, {mt::Shard(1)});
  const mt::DTensor b = mt::distribute_tensor(torch::ones({4, 5}), mesh, {mt::Shard(0)});
  RECORD_USER_SCOPE("one step");
  torch::relu(mt::DTensor(torch::mm(a, b)).redistribute({mt::Replicate()})).sum().backward();
}

std::map<std::string, int> rows_by_name(const json& trace, int rank) {
  std::map<std::string, int> rows;
  for (const json& event : trace.at("traceEvents")) {
    if (event.at("ph") == "X" && event.at("pid") == rank) rows[event.at("name")] = event.at("tid");
  }
  return rows;
}

TEST(Trace, HoldsOperatorsCollectivesAndScopes) {
  on_ranks(2, [](int rank) {
    mt::TraceMode trace;
    work();
    trace.stop();
    const std::size_t size = trace.size();
    work();
    EXPECT_EQ(trace.size(), size) << "recorded after stop()";
    const auto rows = rows_by_name(json::parse(trace.json()), rank);
    EXPECT_EQ(rows.at("aten::mm"), 0);
    EXPECT_EQ(rows.at("one step"), 0);
    EXPECT_EQ(rows.at("ReluBackward0"), 0);
    EXPECT_EQ(rows.at("c10d::allreduce_"), 1);
  });
}

TEST(Trace, AnOperatorHoldsItsCallOnTheShard) {
  on_ranks(2, [](int) {
    mt::TraceMode trace;
    work();
    const json all = json::parse(trace.json());
    // In the order in which they ended; before the shard's, a call on shapes alone may have been made.
    json inner, outer;
    for (const json& event : all.at("traceEvents")) {
      if (event.at("name") != "aten::mm") continue;
      if (inner.is_null() && event.at("args").at("shapes") == "[3, 2], [2, 5]") inner = event;
      if (!inner.is_null() && outer.is_null() && event.at("args").at("shapes") == "[3, 4], [4, 5]")
        outer = event;
    }
    ASSERT_FALSE(inner.is_null() || outer.is_null());
    EXPECT_LE(outer.at("ts").get<double>(), inner.at("ts").get<double>());
    EXPECT_GE(outer.at("dur").get<double>(), inner.at("dur").get<double>());
  });
}

TEST(Trace, OneFileHoldsAllRanks) {
  const auto file =
      std::filesystem::temp_directory_path() / ("trace_test." + std::to_string(getppid()) + ".json");
  on_ranks(3, [&](int rank) {
    mt::TraceMode trace;
    work();
    trace.save(file.string());
    if (rank != 0) return;
    std::ifstream in(file);
    const json all = json::parse(in);
    for (int r = 0; r < 3; ++r)
      EXPECT_TRUE(rows_by_name(all, r).contains("c10d::allreduce_")) << "rank " << r;
    std::filesystem::remove(file);
  });
}

TEST(Trace, AFileThatCannotBeWrittenIsAnErrorOnEveryRank) {
  on_ranks(2, [](int) {
    mt::TraceMode trace;
    EXPECT_EQ(
        error_of([&] { trace.save("no/such/folder/trace.json"); }),
        "meshtorch: the trace cannot be written to no/such/folder/trace.json\n  in: TraceMode::save, on rank "
        "0\n  do: name a file in a folder that exists and can be written");
  });
}

}  // namespace
}  // namespace meshtorch::testing
