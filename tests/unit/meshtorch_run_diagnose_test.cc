// What meshtorch-run --diagnose says of flight records.
#include <nlohmann/json.hpp>

#include "meshtorch_run_process.h"

namespace meshtorch::run_test {
namespace {

using nlohmann::json;

struct Made {
  int number;
  const char* collective;
  std::uint64_t agreed;
  bool is_over = true;
};

class Diagnosis : public ::testing::Test {
 protected:
  void SetUp() override { std::filesystem::create_directories(directory_); }
  void TearDown() override { std::filesystem::remove_all(directory_); }

  void write(int rank, const std::vector<Made>& calls, const std::vector<int>& group = {0, 1, 2},
             const std::vector<Made>& posted = {}) const {
    json list = json::array();
    for (const Made& call : posted) {  // what is posted, and then waited for
      const json made{{"group", group},        {"lane", "gather"},
                      {"number", call.number}, {"collective", call.collective},
                      {"agreed", call.agreed}, {"began", call.number}};
      list.push_back(made);
      list.back()["ended"] = call.number + 0.5;
      if (!call.is_over) list.push_back(made);
    }
    for (const Made& call : calls) {
      list.push_back({{"group", group},
                      {"number", call.number},
                      {"collective", call.collective},
                      {"agreed", call.agreed},
                      {"type", "Float"},
                      {"shape", {2, 3}},
                      {"for", "aten::mm"},
                      {"began", call.number}});
      if (call.is_over) list.back()["ended"] = call.number + 0.5;
    }
    std::ofstream(directory_ / ("rank_" + std::to_string(rank) + ".json"))
        << json{{"rank", rank}, {"world_size", 3}, {"reason", "a test"}, {"calls", list}};
  }

  std::string first_line() const {
    const Result result = run({"--diagnose", directory_.string()});
    EXPECT_EQ(result.exit_code, 0) << result.err;
    return result.out.substr(0, result.out.find('\n'));
  }

  const std::filesystem::path directory_ =
      std::filesystem::temp_directory_path() / ("meshtorch_diagnose_" + std::to_string(getpid()));
};

TEST_F(Diagnosis, NamesTheRankThatDidNotCome) {
  write(0, {{1, "barrier", 1}, {2, "all_reduce", 2, false}});
  write(1, {{1, "barrier", 1}});
  write(2, {{1, "barrier", 1}, {2, "all_reduce", 2, false}});
  EXPECT_EQ(
      first_line(),
      "Rank 1 did not come to all_reduce(Float[2,3]) for aten::mm, call #2 of the group of all ranks, having "
      "last done barrier(Float[2,3]) for aten::mm, call #1; ranks 0, 2 wait.");
}

TEST_F(Diagnosis, OfPostedCallsTellsWhoDidNotPostAndMixesThemWithNoOthers) {
  write(0, {{1, "barrier", 1}}, {0, 1, 2},
        {{1, "all_gather_into_tensor", 7}, {2, "all_gather_into_tensor", 8, false}});
  write(1, {{1, "barrier", 1}}, {0, 1, 2}, {{1, "all_gather_into_tensor", 7}});
  write(2, {{1, "barrier", 1}}, {0, 1, 2},
        {{1, "all_gather_into_tensor", 7}, {2, "all_gather_into_tensor", 8}});
  EXPECT_EQ(
      first_line(),
      "Rank 1 did not come to all_gather_into_tensor(), call #2 of what is posted (gather) in the group of "
      "all ranks, having last done all_gather_into_tensor(), call #1; ranks 0, 2 wait.");
}

TEST_F(Diagnosis, NamesTheRankThatLeftNoRecord) {
  write(0, {{2, "all_reduce", 2, false}});
  write(1, {{2, "all_reduce", 2, false}});
  EXPECT_EQ(first_line(),
            "Rank 2 left no record and did not come to all_reduce(Float[2,3]) for aten::mm, call #2 of the "
            "group of "
            "all ranks; ranks 0, 1 wait.");
}

TEST_F(Diagnosis, NamesTheFirstCallAtWhichRanksPart) {
  write(0, {{1, "barrier", 1}, {2, "all_reduce", 7}, {3, "broadcast", 9, false}});
  write(1, {{1, "barrier", 1}, {2, "all_gather", 8}, {3, "reduce", 10, false}});
  write(2, {{1, "barrier", 1}, {2, "all_reduce", 7}, {3, "broadcast", 9, false}});
  EXPECT_EQ(first_line(),
            "The ranks part at call #2 of the group of all ranks: rank 1 called all_gather(Float[2,3]) for "
            "aten::mm, "
            "ranks 0, 2 called all_reduce(Float[2,3]) for aten::mm.");
}

TEST_F(Diagnosis, FindsTheGroupInWhichItBegan) {
  write(0, {{5, "all_reduce", 2, false}}, {0, 1});
  write(1, {{4, "all_reduce", 2}}, {0, 1});
  write(2, {{9, "barrier", 3}}, {2});
  EXPECT_EQ(first_line(),
            "Rank 1 did not come to all_reduce(Float[2,3]) for aten::mm, call #5 of the group of ranks 0, 1, "
            "having "
            "last done all_reduce(Float[2,3]) for aten::mm, call #4; rank 0 waits.");
}

TEST_F(Diagnosis, SaysWhenNothingIsWrong) {
  for (const int rank : {0, 1, 2}) write(rank, {{1, "barrier", 1}, {2, "all_reduce", 2}});
  EXPECT_EQ(first_line(), "The ranks made the same calls and none waits for another.");
}

TEST_F(Diagnosis, OfNothingOrOfWhatIsNoRecordIsAnError) {
  const Result nothing = run({"--diagnose", directory_.string()});
  EXPECT_EQ(nothing.exit_code, 2);
  EXPECT_TRUE(contains(nothing.err, "meshtorch-run: there is no flight record.\n")) << nothing.err;
  std::ofstream(directory_ / "rank_0.json") << "{\"rank\": 0";
  const Result damaged = run({"--diagnose", directory_.string()});
  EXPECT_EQ(damaged.exit_code, 2);
  EXPECT_TRUE(contains(damaged.err, "meshtorch-run: a flight record cannot be read.\n")) << damaged.err;
}

TEST_F(Diagnosis, ARecordWhoseNumbersCannotBeIsAnError) {
  write(0, {{1, "barrier", 1}});
  const std::filesystem::path file = directory_ / "rank_0.json";
  json whole;
  std::ifstream(file) >> whole;
  const auto expect_refused = [&](const char* where, const json& value, const std::string& words) {
    json damaged = whole;
    damaged[json::json_pointer(where)] = value;
    std::ofstream(file) << damaged;
    const Result result = run({"--diagnose", directory_.string()});
    EXPECT_EQ(result.exit_code, 2) << where;
    EXPECT_EQ(result.err, "meshtorch-run: a flight record cannot be read.\n  " + file.string() + ": " +
                              words + "\n  do: give a directory with records that meshtorch wrote\n");
  };
  expect_refused("/calls/0/group", json::array(), "a call of a group without members");
  expect_refused("/calls/0/group", {0, 2000000000}, "it counts ranks up to 2000000000");
  expect_refused("/rank", -1, "it counts ranks up to -1");
  expect_refused("/world_size", 2147483647, "it counts ranks up to 2147483647");
  json deep = 0;
  for (int i = 0; i < 100; ++i) deep = json::array({deep});
  expect_refused("/calls/0/shape", deep, "JSON is nested deeper than 64 levels");
}

}  // namespace
}  // namespace meshtorch::run_test
