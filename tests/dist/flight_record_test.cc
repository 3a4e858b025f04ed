// The flight record: what it holds, when it is written, and what meshtorch-run says of it.
#include <meshtorch/flight_record.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <map>
#include <nlohmann/json.hpp>

#include "numbers.h"
#include "scratch_directory.h"

namespace meshtorch::testing {
namespace {

using nlohmann::json;

json record_of(const std::filesystem::path& directory, int rank) {
  std::ifstream in(directory / ("rank_" + std::to_string(rank) + ".json"));
  return json::parse(in);
}

std::string diagnosis_of(const std::filesystem::path& directory) {
  const std::string command =
      std::string(MESHTORCH_RUN_BINARY) + " --diagnose " + directory.string() + " 2>&1";
  FILE* pipe = popen(command.c_str(), "r");
  std::string text;
  char buffer[1024];
  for (std::size_t n; (n = std::fread(buffer, 1, sizeof buffer, pipe)) > 0;) text.append(buffer, n);
  pclose(pipe);
  return text;
}

// Failures are written to a directory while it lives.
class Asked {
 public:
  explicit Asked(const std::filesystem::path& directory) {
    setenv("MESHTORCH_FLIGHT_RECORD", directory.c_str(), 1);
  }
  ~Asked() { unsetenv("MESHTORCH_FLIGHT_RECORD"); }
};

TEST(FlightRecord, HoldsTheCallsInOrder) {
  on_ranks(2, [&](int rank) {
    const ScratchDirectory scratch("flight_calls");
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2});
    mt::wait_tensor(mt::all_reduce(torch::ones({2, 3}), mt::ReduceOp::max, {}));
    torch::mm(mt::distribute_tensor(torch::ones({4, 4}), mesh, {mt::Shard(1)}),
              mt::distribute_tensor(torch::ones({4, 4}), mesh, {mt::Shard(1)}));
    mt::write_flight_record(scratch.path());
    const json record = record_of(scratch.path(), rank);
    EXPECT_EQ(record.at("rank"), rank);
    EXPECT_EQ(record.at("reason"), "asked for");
    const json& calls = record.at("calls");
    ASSERT_GE(calls.size(), 2u);
    double before = 0;
    const json* reduction = nullptr;
    for (const json& call : calls) {
      EXPECT_GE(call.at("began"), before);
      EXPECT_GE(call.at("ended"), call.at("began"));
      before = call.at("began");
      if (call.at("collective") == "all_reduce" && call.value("reduction", "") == "max") reduction = &call;
    }
    ASSERT_NE(reduction, nullptr) << calls;
    EXPECT_EQ(reduction->at("shape"), (std::vector<int>{2, 3}));
    EXPECT_EQ(reduction->at("type"), "Float");
    EXPECT_EQ(reduction->at("group"), (std::vector<int>{0, 1}));
    EXPECT_EQ(calls.back().at("for"), "aten::mm") << calls.back();
    mt::barrier();
  });
}

TEST(FlightRecord, HoldsWhatIsPostedAheadOfTime) {
  on_ranks(2, [&](int rank) {
    if (mt::get_backend() == "gloo") return;  // its calls all meet
    const ScratchDirectory scratch("flight_posted");
    mt::nn::Linear linear(4, 4);
    mt::fully_shard(*linear, mt::init_device_mesh(torch::kCPU, {2}));
    mt::write_flight_record(scratch.path());
    const int before = record_of(scratch.path(), rank).at("calls_made");
    linear(torch::ones({2, 4})).sum().backward();
    mt::set_rotate_method(mt::RotateMethod::ring);  // its blocks are messages
    const torch::Tensor rows = mt::ones({1, 1, 4, 2}, mt::init_device_mesh(torch::kCPU, {2}), {mt::Shard(2)});
    torch::scaled_dot_product_attention(rows, rows, rows);
    mt::set_rotate_method(mt::RotateMethod::automatic);
    mt::write_flight_record(scratch.path());
    std::map<std::string, std::map<int, int>> posted;  // how often each is kept: posted, then waited for
    const json record = record_of(scratch.path(), rank);
    const json& calls = record.at("calls");
    const int after = record.at("calls_made");
    for (auto i = calls.size() - static_cast<std::size_t>(after - before); i < calls.size(); ++i) {
      json call = calls[i];
      if (!call.contains("lane")) continue;
      EXPECT_GE(call.at("ended"), call.at("began"));
      ++posted[call["lane"]][call["number"]];
    }
    EXPECT_EQ(posted.size(), 3u);
    for (const auto& [lane, numbers] : posted) {
      for (const auto& [number, times] : numbers) EXPECT_EQ(times, 2) << lane << " #" << number;
    }
    mt::barrier();
  });
}

TEST(FlightRecord, KeepsTheLastTwoThousandCalls) {
  on_ranks(2, [&](int rank) {
    const ScratchDirectory scratch("flight_ring");
    for (int i = 0; i < 2100; ++i) mt::barrier();
    mt::write_flight_record(scratch.path());
    const json record = record_of(scratch.path(), rank);
    EXPECT_EQ(record.at("calls").size(), 2000u);
    const std::int64_t first = record["calls"].front().at("number");
    EXPECT_EQ(record["calls"].back().at("number"), first + 1999);
    mt::barrier();
  });
}

TEST(FlightRecord, OfADisagreementTellsWhoCalledWhat) {
  const Asked asked(scratch_path("flight_disagreement"));
  on_ranks(3, [&](int rank) {
    const ScratchDirectory scratch("flight_disagreement");
    const torch::Tensor x = torch::ones({4});
    EXPECT_THROW(rank == 1 ? mt::wait_tensor(mt::all_gather_tensor(x, 0, {}))
                           : mt::wait_tensor(mt::all_reduce(x, mt::ReduceOp::sum, {})),
                 c10::Error);
    mt::barrier();
    if (rank != 0) return;
    const std::string text = diagnosis_of(scratch.path());
    EXPECT_EQ(text.substr(0, text.find(" of the group")),
              "The ranks part at call #" +
                  std::to_string(record_of(scratch.path(), 0)["calls"].back().at("number").get<int>()))
        << text;
    EXPECT_NE(text.find(": rank 1 called all_gather_into_tensor(Float[4]), ranks 0, 2 called "
                        "all_reduce(Float[4], sum)."),
              std::string::npos)
        << text;
  });
}

TEST(FlightRecord, ALongWaitIsToldWhileItLasts) {
  setenv("MESHTORCH_WARN_AFTER", "0.1", 1);
  ::testing::internal::CaptureStderr();
  on_ranks(2, [&](int rank) {
    mt::barrier();
    if (rank == 1) std::this_thread::sleep_for(std::chrono::milliseconds(700));
    mt::wait_tensor(mt::all_reduce(torch::ones({4}), mt::ReduceOp::sum, {}));
  });
  unsetenv("MESHTORCH_WARN_AFTER");
  const std::string told = ::testing::internal::GetCapturedStderr();
  const char* rank = std::getenv("RANK");
  if (ranks_are_processes() && std::string(rank == nullptr ? "0" : rank) != "0") return;
  EXPECT_NE(told.find("meshtorch: rank 0 has waited for 0.1"), std::string::npos) << told;
  EXPECT_NE(told.find("rank 1: has left barrier #"), std::string::npos) << told;
}

}  // namespace
}  // namespace meshtorch::testing
