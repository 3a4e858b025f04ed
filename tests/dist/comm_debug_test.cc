// CommDebugMode: counts, bytes, nesting, and what it prints.
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <nlohmann/json.hpp>
#include <regex>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;

// As PyTorch's tests of its comm mode: rank 1 of 2, no communication.
class CommDebugCounts : public ::testing::Test {
 protected:
  void SetUp() override {
    mt::init_process_group({.backend = "fake", .init_method = "tcp://none:0", .rank = 1, .world_size = 2});
  }
  void TearDown() override { mt::destroy_process_group(); }
};

struct MLPImpl : torch::nn::Module {
  torch::nn::Linear net1 = register_module("net1", torch::nn::Linear(10, 16));
  torch::nn::Linear net2 = register_module("net2", torch::nn::Linear(16, 10));
  torch::Tensor forward(const torch::Tensor& x) { return net2(torch::relu(net1(x))); }
};
TORCH_MODULE(MLP);

TEST_F(CommDebugCounts, CommMode) {
  MLP model;
  const mt::CommDebugMode comm;
  torch::Tensor x = mt::all_gather_tensor(torch::randn({20, 10}), 0, {});
  x = mt::reduce_scatter_tensor(x, "sum", 0, {});
  const torch::Tensor out = mt::all_reduce(model(x), "sum", {});
  EXPECT_EQ(out.sizes(), at::IntArrayRef({20, 10}));
  EXPECT_EQ(comm.get_total_counts(), 3);
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor], 1);
}

TEST_F(CommDebugCounts, CommModeCoalesced) {
  MLP model;
  const mt::CommDebugMode comm;
  torch::Tensor x = mt::all_gather_tensor(torch::randn({20, 10}), 0, {});
  x = mt::reduce_scatter_tensor(x, "sum", 0, {});
  mt::all_reduce_coalesced({model(x)}, "sum", {});
  EXPECT_EQ(comm.get_total_counts(), 3);
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce_coalesced], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor], 1);
}

TEST_F(CommDebugCounts, EveryCollectiveHasItsOwnCount) {
  const mt::CommDebugMode comm;
  const torch::Tensor x = torch::ones({4});
  mt::all_gather_into_tensor_coalesced({x, x}, {});
  mt::reduce_scatter_tensor_coalesced({x, x}, "sum", {0, 0}, {});
  mt::all_to_all_single(x, {}, {}, {});
  mt::broadcast(x, 0, {});
  mt::permute_tensor(x, {{0, 1}, {1, 0}}, {});
  mt::barrier();
  std::vector<std::string> seen;
  for (const auto& [collective, statistics] : comm.get_comm_counts().statistics()) {
    seen.push_back(c10::str(to_string(collective), " ", statistics.count));
  }
  EXPECT_EQ(seen, (std::vector<std::string>{"all_gather_into_tensor_coalesced 1",
                                            "reduce_scatter_tensor_coalesced 1", "all_to_all_single 2",
                                            "broadcast 1", "barrier 1"}));
}

TEST_F(CommDebugCounts, CountsAUsersOwnCalls) {
  const mt::CommDebugMode comm;
  const auto group = mt::Group().process_group();
  std::vector<torch::Tensor> tensors{torch::ones({8})};
  group->allreduce(tensors)->wait();
  std::vector<std::vector<torch::Tensor>> lists{{torch::ones({8}), torch::ones({8})}};
  group->allgather(lists, tensors)->wait();
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather], 1);
  EXPECT_EQ(comm.get_total_counts(), 2);
}

TEST_F(CommDebugCounts, CountsBackward) {
  const torch::Tensor x = torch::ones({4}).requires_grad_();
  mt::CommDebugMode comm;
  const torch::Tensor loss =
      mt::all_gather_tensor_autograd(mt::all_reduce_autograd(x, "sum", {}), 0, {}).sum();
  EXPECT_EQ(comm.get_total_counts(), 2);
  comm.restart();
  loss.backward();
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 1);
  EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor], 1);
  EXPECT_EQ(comm.get_total_counts(), 2);
}

TEST_F(CommDebugCounts, NestedModesCountByThemselves) {
  const mt::CommDebugMode outer;
  mt::barrier();
  {
    const mt::CommDebugMode inner;
    EXPECT_EQ(inner.get_total_counts(), 0);
    mt::barrier();
    EXPECT_EQ(inner.get_total_counts(), 1);
  }
  mt::barrier();
  EXPECT_EQ(outer.get_total_counts(), 3);
}

TEST_F(CommDebugCounts, StopKeepsTheCountsAndRestartBeginsAtZero) {
  mt::CommDebugMode comm;
  mt::barrier();
  comm.stop();
  mt::barrier();
  EXPECT_EQ(comm.get_total_counts(), 1);
  comm.restart();
  EXPECT_EQ(comm.get_total_counts(), 0);
  mt::barrier();
  comm.restart();
  comm.restart();
  mt::barrier();
  EXPECT_EQ(comm.get_total_counts(), 1);
}

TEST_F(CommDebugCounts, NothingIsRegisteredWhenNoneIsActive) {
  EXPECT_FALSE(at::hasCallbacks());
  {
    mt::CommDebugMode comm;
    EXPECT_TRUE(at::hasCallbacks());
    comm.stop();
    EXPECT_FALSE(at::hasCallbacks());
    comm.restart();
    const mt::CommDebugMode second;
    EXPECT_TRUE(at::hasCallbacks());
  }
  EXPECT_FALSE(at::hasCallbacks());
}

// 4 floats: all_reduce sends both halves of a ring, 2 * 16 / 2; all_gather its own 16; reduce_scatter half
// of 16.
void three_collectives() {
  mt::all_reduce(torch::ones({4}), "sum", {});
  mt::all_reduce(torch::ones({4}), "sum", {});
  mt::all_gather_tensor(torch::ones({4}), 0, {});
  mt::reduce_scatter_tensor(torch::ones({4}), "sum", 0, {});
}

TEST_F(CommDebugCounts, PrintsATable) {
  const mt::CommDebugMode comm;
  three_collectives();
  EXPECT_EQ(std::regex_replace(comm.table(), std::regex(" +[0-9]+\\.[0-9]{3}\n"), " time\n"),
            "collective                           count      bytes sent    time ms\n"
            "all_reduce                               2              32 time\n"
            "all_gather_into_tensor                   1              16 time\n"
            "reduce_scatter_tensor                    1               8 time\n"
            "total                                    4              56 time\n");
}

TEST_F(CommDebugCounts, WritesJson) {
  const mt::CommDebugMode comm;
  three_collectives();
  EXPECT_EQ(std::regex_replace(comm.json(), std::regex("\"seconds\": [0-9.e-]+"), "\"seconds\": time"),
            R"({
  "total_count": 4,
  "collectives": {
    "all_reduce": {
      "count": 2,
      "bytes_sent": 32,
      "seconds": time
    },
    "all_gather_into_tensor": {
      "count": 1,
      "bytes_sent": 16,
      "seconds": time
    },
    "reduce_scatter_tensor": {
      "count": 1,
      "bytes_sent": 8,
      "seconds": time
    }
  },
  "modules": {}
})");
}

TEST(CommDebugOnRanks, TablesOfMoreDetailShowTheOperators) {
  on_ranks(2, [](int) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2}, {"tp"});
    const torch::Tensor x = mt::distribute_tensor(torch::ones({4, 3}), mesh, {mt::Shard(0)});
    const torch::Tensor w = mt::distribute_tensor(torch::ones({3, 2}), mesh, {mt::Replicate()});
    mt::CommDebugMode comm({.notes_operators = true});
    for (int i = 0; i < 2; ++i) torch::relu(torch::mm(x, w.t().t()));
    comm.stop();
    const auto operators = [&](mt::TableDetail detail) {
      const std::string table = comm.module_table(detail);
      return table.substr(table.find("\n\n") + 2);
    };
    EXPECT_EQ(operators(mt::TableDetail::distributed),
              "module     phase    operator    operands                   calls\n"
              "(outside)  forward  aten::mm    [4, 3] [S(0)], [3, 2] [R]      2\n"
              "(outside)  forward  aten::relu  [4, 2] [S(0)]                  2\n");
    EXPECT_EQ(operators(mt::TableDetail::operators),
              "module     phase    operator    operands                   calls\n"
              "(outside)  forward  aten::mm    [4, 3] [S(0)], [3, 2] [R]      2\n"
              "(outside)  forward  aten::mm    [2, 3], [3, 2]                 2\n"
              "(outside)  forward  aten::relu  [4, 2] [S(0)]                  2\n"
              "(outside)  forward  aten::relu  [2, 2]                         2\n");
    EXPECT_NE(operators(mt::TableDetail::all).find("aten::t     "), std::string::npos);
    EXPECT_EQ(comm.module_table().find("aten::"), std::string::npos);
    const auto json = nlohmann::json::parse(comm.json(mt::TableDetail::distributed));
    ASSERT_EQ(json["operators"].size(), 2);
    EXPECT_EQ(json["operators"][1]["operator"], "aten::relu");
    EXPECT_EQ(json["operators"][1]["calls"], 2);
    const mt::CommDebugMode counts;
    EXPECT_NE(
        error_of([&] { counts.module_table(mt::TableDetail::all); }).find("do: make it as CommDebugMode({"),
        std::string::npos);
  });
}

TEST(CommDebugOnRanks, EachRankCountsItsOwn) {
  on_ranks(3, [](int rank) {
    const mt::CommDebugMode comm;
    const torch::Tensor x = torch::ones({6}).requires_grad_();
    mt::all_reduce_autograd(x, "sum", {}).sum().backward();
    const mt::Group pair({0, 2});
    if (rank != 1) mt::wait_tensor(mt::all_reduce(torch::ones({3}), "sum", pair));
    const auto& counts = comm.get_comm_counts();
    EXPECT_EQ(counts[Collective::all_reduce], rank == 1 ? 2 : 3);
    EXPECT_EQ(counts.statistics().at(Collective::all_reduce).bytes_sent, 2 * 32 + (rank == 1 ? 0 : 12));
    EXPECT_GT(counts.statistics().at(Collective::all_reduce).seconds, 0);
    mt::barrier();
  });
}

TEST(CommDebugOnRanks, WaitingForWhatBeganBeforeIsNotCounted) {
  on_ranks(2, [](int) {
    mt::CommDebugMode comm;
    const torch::Tensor x = mt::all_reduce(torch::ones({1000}), "sum", {});
    comm.restart();
    mt::wait_tensor(x);
    EXPECT_TRUE(comm.get_comm_counts().statistics().empty());
  });
}

}  // namespace
}  // namespace meshtorch::testing
