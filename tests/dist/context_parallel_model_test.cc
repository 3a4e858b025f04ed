// A model of causal blocks whose sequence is split over cp, beside tp, dp and fully_shard, against one
// device; scopes on meshes of several axes; dropout by position.
#include <meshtorch/context_parallel.h>
#include <meshtorch/fully_shard.h>

#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::Placements;
using mt::Replicate;
using mt::RotateMethod;
using mt::Shard;

constexpr int64_t kVocabulary = 11, kPositions = 16, kWidth = 8;

struct GptImpl : torch::nn::Module {
  GptImpl()
      : tokens(kVocabulary, kWidth),
        positions(kPositions, kWidth),
        first(kWidth, /*head_width=*/2, /*hidden=*/12),
        second(kWidth, 2, 12),
        head(kWidth, kVocabulary) {
    register_module("tokens", tokens);
    register_module("positions", positions);
    register_module("first", first);
    register_module("second", second);
    register_module("head", head);
  }
  torch::Tensor forward(torch::Tensor ids_BS, torch::Tensor positions_BS) {
    return head(second(first(tokens(ids_BS) + positions(positions_BS))));
  }
  mt::nn::Embedding tokens, positions;
  Block first, second;
  mt::nn::Linear head;
};
MESHTORCH_MODULE(Gpt);

const mt::ParallelizePlan kByHeads{{"*.norm[12]", mt::NoParallel({.use_local_output = false})},
                                   {"*.attention.[qkv]", mt::ColwiseParallel({.use_local_output = false})},
                                   {"*.attention.out", mt::RowwiseParallel({.use_local_output = false})},
                                   {"*.mlp.up", mt::ColwiseParallel({.use_local_output = false})},
                                   {"*.mlp.down", mt::RowwiseParallel({.use_local_output = false})}};

struct GptCase {
  const char* name;
  mt::DeviceMesh::Names axes;  // of "dp", "fsdp", "cp", "tp"
  std::vector<int64_t> sizes;
  RotateMethod method;
  int64_t length = 12;
  bool load_balance = true;
  torch::ScalarType type = torch::kDouble;

  bool has(const char* axis) const { return std::find(axes.begin(), axes.end(), axis) != axes.end(); }
};
std::ostream& operator<<(std::ostream& out, const GptCase& c) { return out << c.name; }

Gpt gpt_on(const GptCase& c, const mt::DeviceMesh& mesh) {
  Gpt gpt = filled(Gpt());
  gpt->to(c.type);
  if (c.has("tp")) mt::parallelize_module(*gpt, mesh["tp"], kByHeads);
  mt::DeviceMesh::Names others;
  for (const std::string& axis : c.axes)
    if (axis != "fsdp") others.push_back(axis);
  mt::distribute_module(*gpt, mesh[others]);
  if (c.has("fsdp")) {
    mt::fully_shard(*gpt->first, mesh["fsdp"]);
    mt::fully_shard(*gpt->second, mesh["fsdp"]);
    mt::fully_shard(*gpt, mesh["fsdp"]);
  }
  return gpt;
}

torch::Tensor gpt_tokens(int64_t batch, int64_t length, int64_t seed) {
  const torch::Tensor steps = torch::arange(batch * length, torch::kLong) * 29 + 13 * seed + 3;
  return (steps * steps).remainder(97).remainder(kVocabulary).view({batch, length});
}

torch::Tensor gpt_loss(const torch::Tensor& logits_BSV, const torch::Tensor& targets_BS) {
  return torch::nn::functional::cross_entropy(logits_BSV.flatten(0, 1), targets_BS.flatten(0, 1));
}

class ContextParallelModel : public ::testing::TestWithParam<GptCase> {};

TEST_P(ContextParallelModel, TrainsAsOneDevice) {
  const GptCase& c = GetParam();
  const int ranks = static_cast<int>(c10::multiply_integers(c.sizes));
  if (ranks_are_processes() && ranks > 4) GTEST_SKIP() << ranks << " ranks are threads";
  on_ranks(ranks, [&](int) {
    const double tolerance = c.type == torch::kDouble ? 1e-9 : 1e-5;
    mt::set_rotate_method(c.method);
    const mt::implicit_replication plain_is_replicated;
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, c.sizes, c.axes);
    Gpt plain = filled(Gpt());
    plain->to(c.type);
    Gpt parallel = gpt_on(c, mesh);
    const torch::Tensor positions_BS = torch::arange(c.length).unsqueeze(0);
    Placements rows(c.axes.size());
    for (std::size_t i = 0; i < rows.size(); ++i)
      if (c.axes[i] == "dp" || c.axes[i] == "fsdp") rows[i] = Shard(0);
    const auto spread = [&](const torch::Tensor& t, const Placements& placements) {
      return mt::distribute_tensor(t, mesh, placements, {.src_data_rank = std::nullopt});
    };
    torch::optim::SGD plain_sgd(plain->parameters(), torch::optim::SGDOptions(0.1));
    torch::optim::SGD sgd(parallel->parameters(), torch::optim::SGDOptions(0.1));
    for (int step = 0; step < 2; ++step) {
      const torch::Tensor ids_BS = gpt_tokens(4, c.length, step);
      const torch::Tensor targets_BS = gpt_tokens(4, c.length, step + 50);
      plain_sgd.zero_grad();
      sgd.zero_grad();
      const torch::Tensor expected = plain(ids_BS, positions_BS);
      const torch::Tensor expected_loss = gpt_loss(expected, targets_BS);
      expected_loss.backward();

      const torch::Tensor inputs = spread(ids_BS, rows);
      const torch::Tensor targets = spread(targets_BS, rows);
      const torch::Tensor positions = spread(positions_BS, Placements(rows.size()));
      torch::Tensor loss;
      {
        const mt::context_parallel scope(mesh["cp"], {inputs, targets, positions}, {1, 1, 1},
                                         {.load_balance = c.load_balance});
        const torch::Tensor logits = parallel(inputs, positions);
        loss = gpt_loss(logits, targets);
        loss.backward();
        const torch::Tensor order = mt::full_tensor(positions)[0];
        EXPECT_TRUE(
            is_close(mt::full_tensor(logits.detach()), expected.detach().index_select(1, order), tolerance));
      }
      EXPECT_EQ(mt::placements(inputs), rows);
      mt::reduce_gradients(parallel->parameters());
      ASSERT_NEAR(mt::full_tensor(loss).item<double>(), expected_loss.item<double>(), tolerance);
      const auto by_name = plain->named_parameters();
      for (const auto& p : parallel->named_parameters())
        ASSERT_TRUE(is_close(mt::full_tensor(p.value().grad()), by_name[p.key()].grad(), tolerance))
            << p.key();
      plain_sgd.step();
      sgd.step();
    }
    mt::set_rotate_method(RotateMethod::automatic);
  });
}

using Way = RotateMethod;
INSTANTIATE_TEST_SUITE_P(
    OneAxis, ContextParallelModel,
    ::testing::Values(
        GptCase{"Cp2Gathered", {"cp"}, {2}, Way::allgather}, GptCase{"Cp2Ring", {"cp"}, {2}, Way::ring},
        GptCase{"Cp2Ulysses", {"cp"}, {2}, Way::ulysses}, GptCase{"Cp3Gathered", {"cp"}, {3}, Way::allgather},
        GptCase{"Cp3Ring", {"cp"}, {3}, Way::ring}, GptCase{"Cp4Gathered", {"cp"}, {4}, Way::allgather, 16},
        GptCase{"Cp4Ring", {"cp"}, {4}, Way::ring, 16}, GptCase{"Cp4Ulysses", {"cp"}, {4}, Way::ulysses, 16},
        GptCase{"Cp2Uneven", {"cp"}, {2}, Way::ring, 7, false},
        GptCase{"Cp4RanksWithoutRows", {"cp"}, {4}, Way::ring, 3, false},
        GptCase{"Cp4Float32", {"cp"}, {4}, Way::ring, 16, true, torch::kFloat}),
    [](const auto& each) { return each.param.name; });
INSTANTIATE_TEST_SUITE_P(
    TwoAxes, ContextParallelModel,
    ::testing::Values(GptCase{"CpTpGathered", {"cp", "tp"}, {2, 2}, Way::allgather},
                      GptCase{"CpTpRing", {"cp", "tp"}, {2, 2}, Way::ring},
                      GptCase{"CpTpUlysses", {"cp", "tp"}, {2, 2}, Way::ulysses},
                      GptCase{"TpCpRing", {"tp", "cp"}, {2, 2}, Way::ring},
                      GptCase{"DpCpGathered", {"dp", "cp"}, {2, 2}, Way::allgather},
                      GptCase{"DpCpRingUneven", {"dp", "cp"}, {2, 2}, Way::ring, 9, false},
                      GptCase{"FullyShardedCpGathered", {"fsdp", "cp"}, {2, 2}, Way::allgather},
                      GptCase{"FullyShardedCpRing", {"fsdp", "cp"}, {2, 2}, Way::ring},
                      GptCase{"FullyShardedCpUlysses", {"fsdp", "cp"}, {2, 2}, Way::ulysses}),
    [](const auto& each) { return each.param.name; });
INSTANTIATE_TEST_SUITE_P(
    ThreeAxes, ContextParallelModel,
    ::testing::Values(GptCase{"DpCpTpGathered", {"dp", "cp", "tp"}, {2, 2, 2}, Way::allgather},
                      GptCase{"DpCpTpRing", {"dp", "cp", "tp"}, {2, 2, 2}, Way::ring},
                      GptCase{"DpCpTpUlysses", {"dp", "cp", "tp"}, {2, 2, 2}, Way::ulysses},
                      GptCase{"FullyShardedCpTpGathered", {"fsdp", "cp", "tp"}, {2, 2, 2}, Way::allgather},
                      GptCase{"FullyShardedCpTpRing", {"fsdp", "cp", "tp"}, {2, 2, 2}, Way::ring}),
    [](const auto& each) { return each.param.name; });

std::vector<torch::Tensor> plain_qkv(int64_t rows) {
  return {numbers({2, 4, rows, 8}, torch::kDouble, 1), numbers({2, 4, rows, 8}, torch::kDouble, 2),
          numbers({2, 4, rows, 8}, torch::kDouble, 3)};
}

torch::Tensor attend(const std::vector<torch::Tensor>& in, double dropout, bool is_causal) {
  return torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, dropout, is_causal);
}

// Output and gradients of attention with dropout on a mesh of n ranks.
std::vector<torch::Tensor> with_dropout(int n, bool is_causal, bool load_balance, mt::CommDebugMode* comm) {
  const mt::DeviceMesh mesh = line(n);
  mt::manual_seed(5);
  std::vector<torch::Tensor> in = plain_qkv(12);
  std::vector<torch::Tensor> whole;
  {
    const mt::context_parallel scope(mesh, in, {2, 2, 2}, {.load_balance = load_balance});
    for (torch::Tensor& t : in) t = t.detach().requires_grad_();
    if (comm != nullptr) comm->restart();
    const torch::Tensor out = attend(in, 0.3, is_causal);
    if (comm != nullptr) comm->stop();
    if (n > 1) {
      EXPECT_EQ(mt::placements(out), Placements{Shard(2)});
    }
    out.square().sum().backward();
    whole = mt::context_parallel_unshard(mesh, {out.detach(), in[0].grad(), in[1].grad(), in[2].grad()},
                                         {2, 2, 2, 2}, load_balance);
  }
  return whole;
}

TEST(ContextParallelDropout, DrawsTheSameNumbersOnAnyMeshAndGathersKeysAndValuesOnly) {
  for (const bool is_causal : {false, true}) {
    std::vector<torch::Tensor> expected;
    spawn(1, [&](int) { expected = with_dropout(1, is_causal, false, nullptr); });
    for (const int n : {2, 3, 4}) {
      on_ranks(n, [&](int) {
        mt::CommDebugMode comm;
        const std::vector<torch::Tensor> actual = with_dropout(n, is_causal, false, &comm);
        for (std::size_t i = 0; i < actual.size(); ++i)
          EXPECT_TRUE(is_close(actual[i], expected[i], 1e-9)) << "tensor " << i << " on " << n << " ranks";
        EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], 2) << comm.table();
        EXPECT_EQ(comm.get_total_counts(), 2) << comm.table();
      });
    }
    EXPECT_FALSE(is_close(expected[0], attend(plain_qkv(12), 0, is_causal), 1e-3)) << "nothing was dropped";
  }
}

// What is dropped in a balanced order is of other positions, but what is seen is the same: without dropout in
// the limit, the output is that of one device.
TEST(ContextParallelDropout, InABalancedOrderQueriesSeeWhatComesBeforeThem) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    std::vector<torch::Tensor> in = plain_qkv(12);
    const torch::Tensor expected = attend(in, 0, true);
    const mt::context_parallel scope(mesh, in, {2, 2, 2});
    const torch::Tensor out = attend(in, 1e-12, true);
    EXPECT_TRUE(is_close(mt::context_parallel_unshard(mesh, {out}, {2})[0], expected, 1e-9));
  });
}

// A causal call that does not run by blocks gets a mask instead of a wrong answer.
TEST(ContextParallelScope, WholeTensorsInABalancedOrderSeeWhatComesBeforeThem) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    std::vector<torch::Tensor> in = plain_qkv(12);
    const torch::Tensor expected = attend(in, 0, true);
    const mt::context_parallel scope(mesh, in, {2, 2, 2});
    std::vector<torch::Tensor> whole;
    for (const torch::Tensor& t : in) whole.push_back(mt::redistribute(t, {Replicate()}));
    const torch::Tensor out = mt::redistribute(attend(whole, 0, true), {Shard(2)});
    EXPECT_TRUE(is_close(mt::context_parallel_unshard(mesh, {out}, {2})[0], expected, 1e-9));
  });
}

TEST(ContextParallelScope, DistributedBuffersKeepTheirOtherAxes) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "cp"});
    const torch::Tensor whole = torch::arange(4 * 8).view({4, 8});
    const mt::DTensor batch =
        mt::distribute_tensor(whole, mesh, {Shard(0), Replicate()}, {.src_data_rank = std::nullopt});
    {
      const mt::context_parallel scope(mesh["cp"], {batch}, {1});
      EXPECT_EQ(mt::placements(batch), (Placements{Shard(0), Shard(1)}));
      const torch::Tensor mine = whole.narrow(0, 2 * mesh.get_local_rank("dp"), 2);
      const int64_t cp = mesh.get_local_rank("cp");
      EXPECT_TRUE(is_equal(mt::to_local(batch),
                           torch::cat({mine.narrow(1, 2 * cp, 2), mine.narrow(1, 6 - 2 * cp, 2)}, 1)));
    }
    EXPECT_EQ(batch.placements(), (Placements{Shard(0), Replicate()}));
    EXPECT_TRUE(is_equal(batch.full_tensor(), whole));
  });
}

TEST(ContextParallelScope, RefusesBuffersThatAreNotWholeAlongTheSequence) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "cp"});
    const auto refused = [&](const mt::DeviceMesh& on, const Placements& placements) {
      const mt::DTensor batch = mt::zeros({4, 8}, on, placements);
      return error_of([&] { mt::context_parallel(mesh["cp"], {batch}, {1}); });
    };
    EXPECT_EQ(refused(mesh, {Shard(1), Replicate()}),
              "meshtorch: context_parallel splits buffers that are whole along the sequence, and one is "
              "distributed as [S(1), R]\n  sequence dim: 1, axis: \"cp\"\n"
              "  do: distribute it with Replicate() on that axis, and split other dims only");
    EXPECT_NE(refused(mesh["dp"], {Shard(0)}).find("whose mesh has no such axis"), std::string::npos);
  });
}

// Autograd keeps buffers themselves: with other data in them gradients would be wrong in silence.
TEST(ContextParallelScope, BackwardAfterTheScopeIsRefused) {
  on_ranks(2, [](int) {
    const torch::Tensor rows = torch::arange(8);
    const mt::DTensor table = mt::distribute_tensor(numbers({8, 3}, torch::kDouble).requires_grad_(), line(2),
                                                    {Replicate()}, {.src_data_rank = std::nullopt});
    torch::Tensor loss;
    {
      const mt::context_parallel scope(line(2), {rows}, {0});
      loss = torch::embedding(table, rows).square().sum();
    }
    EXPECT_NE(error_of([&] { loss.backward(); }).find("modified by an inplace operation"), std::string::npos);
  });
}

}  // namespace
}  // namespace meshtorch::testing
