// Attention on sequences that are split over ranks, against one device: results, gradients, bytes.
#include <meshtorch/context_parallel.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Placements;
using mt::Replicate;
using mt::RotateMethod;
using mt::Shard;

struct AttentionSample {
  std::vector<torch::Tensor> inputs;  // queries, keys, values
  torch::Tensor mask;
  bool is_causal = false;
};

std::vector<torch::Tensor> qkv(int64_t batch, int64_t heads, int64_t key_heads, int64_t queries, int64_t keys,
                               torch::ScalarType type = torch::kDouble) {
  return {numbers({batch, heads, queries, 8}, type, 1), numbers({batch, key_heads, keys, 8}, type, 2),
          numbers({batch, key_heads, keys, 8}, type, 3)};
}

torch::Tensor attention(const std::vector<torch::Tensor>& in, const torch::Tensor& mask, bool is_causal) {
  const std::optional<torch::Tensor> given = mask.defined() ? std::optional(mask) : std::nullopt;
  return torch::scaled_dot_product_attention(in[0], in[1], in[2], given, 0.0, is_causal, std::nullopt,
                                             /*enable_gqa=*/in[0].size(1) != in[1].size(1));
}

std::vector<torch::Tensor> leaves(const std::vector<torch::Tensor>& tensors) {
  std::vector<torch::Tensor> copies;
  for (const torch::Tensor& t : tensors) copies.push_back(t.clone().requires_grad_());
  return copies;
}

mt::DTensor distributed(const torch::Tensor& t, const mt::DeviceMesh& mesh, const Placements& placements) {
  return mt::distribute_tensor(t, mesh, placements, {.src_data_rank = std::nullopt});
}

// Output and gradients on the mesh equal those on one device, and the output stays split.
void check_attention(const AttentionSample& sample, const mt::DeviceMesh& mesh, const Placements& query,
                     const Placements& key, double tolerance = 1e-9) {
  const auto plain = leaves(sample.inputs);
  const torch::Tensor expected = attention(plain, sample.mask, sample.is_causal);
  const torch::Tensor weights = numbers(expected.sizes(), expected.scalar_type(), 7);
  (expected * weights).sum().backward();

  std::vector<torch::Tensor> split;
  for (std::size_t i = 0; i < 3; ++i)
    split.push_back(distributed(sample.inputs[i].clone().requires_grad_(), mesh, i == 0 ? query : key));
  torch::Tensor mask;
  if (sample.mask.defined()) mask = distributed(sample.mask, mesh, Placements(query.size()));
  const torch::Tensor out = attention(split, mask, sample.is_causal);
  EXPECT_EQ(mt::placements(out), query);
  EXPECT_TRUE(is_close(mt::full_tensor(out).detach(), expected.detach(), tolerance));
  (out * distributed(weights, mesh, Placements(query.size()))).sum().backward();
  for (std::size_t i = 0; i < 3; ++i) {
    EXPECT_TRUE(is_close(mt::full_tensor(split[i].grad()), plain[i].grad(), tolerance)) << "input " << i;
  }
}

const std::vector<RotateMethod> kMethods{RotateMethod::allgather, RotateMethod::ring, RotateMethod::ulysses,
                                         RotateMethod::automatic};

class ContextParallel : public ::testing::TestWithParam<int> {
 protected:
  // On every rank, for each way that the heads allow.
  static void check(const AttentionSample& sample, double tolerance = 1e-9) {
    const int n = GetParam();
    on_ranks(n, [&](int) {
      const mt::DeviceMesh mesh = line(n);
      for (const RotateMethod method : kMethods) {
        if (method == RotateMethod::ulysses && sample.inputs[1].size(1) % n != 0) continue;
        SCOPED_TRACE(c10::str(mt::to_string(method), sample.is_causal ? " causal" : ""));
        mt::set_rotate_method(method);
        check_attention(sample, mesh, {Shard(2)}, {Shard(2)}, tolerance);
        mt::set_rotate_method(RotateMethod::automatic);
      }
    });
  }
};
INSTANTIATE_TEST_SUITE_P(Over, ContextParallel, ::testing::Values(2, 3, 4),
                         [](const ::testing::TestParamInfo<int>& given) {
                           return std::to_string(given.param) + "Ranks";
                         });

TEST_P(ContextParallel, AttentionEqualsOneDevice) {
  check({qkv(2, 12, 12, 24, 24), {}, false});
  check({qkv(2, 12, 12, 24, 24), {}, true});
}

TEST_P(ContextParallel, UnevenLengthsAndRanksWithoutRows) {
  for (const bool is_causal : {false, true}) {
    check({qkv(1, 2, 2, 13, 13), {}, is_causal});
    check({qkv(1, 2, 2, 5, 5), {}, is_causal});  // of 4 ranks the last has none
    check({qkv(1, 2, 2, 1, 1), {}, is_causal});
  }
}

TEST_P(ContextParallel, QueriesAndKeysOfOtherLengths) {
  for (const bool is_causal : {false, true}) {
    check({qkv(1, 2, 2, 7, 12), {}, is_causal});
    check({qkv(1, 2, 2, 12, 7), {}, is_causal});
  }
}

TEST_P(ContextParallel, GroupedHeads) {
  check({qkv(2, 24, 12, 12, 12), {}, true});
  check({qkv(1, 4, 2, 11, 11), {}, true});
  check({qkv(1, 6, 1, 11, 11), {}, false});
}

TEST_P(ContextParallel, Masks) {
  const torch::Tensor additive = numbers({12, 10}, torch::kDouble, 4);
  check({qkv(2, 4, 4, 12, 10), additive, false});
  check({qkv(2, 4, 4, 12, 10), numbers({2, 4, 12, 10}, torch::kDouble, 4), false});
  check({qkv(2, 4, 4, 12, 10), numbers({2, 1, 12, 10}, torch::kDouble, 4), false});
  check({qkv(2, 4, 4, 12, 10), numbers({2, 1, 1, 10}, torch::kDouble, 4), false});
  // Documents: queries see the keys of their own; in some blocks they see none, and one query sees none at
  // all.
  const torch::Tensor document = torch::tensor({0, 0, 0, 0, 1, 1, 1, 1, 1, 2, 2, 3});
  torch::Tensor same = document.unsqueeze(1).eq(document.unsqueeze(0));
  same[11].fill_(false);
  check({qkv(1, 4, 4, 12, 12), same, false});
}

TEST_P(ContextParallel, SmallerTypes) {
  check({qkv(1, 12, 12, 12, 12, torch::kFloat), {}, true}, 1e-5);
  check({qkv(1, 12, 12, 12, 12, torch::kBFloat16), {}, true}, 5e-2);
}

TEST_P(ContextParallel, KeysThatAreWholeNeedNotBeGathered) {
  const int n = GetParam();
  on_ranks(n, [&](int) {
    for (const bool is_causal : {false, true}) {
      const auto inputs = qkv(1, 2, 2, 9, 9);
      check_attention({inputs, {}, is_causal}, line(n), {Shard(2)}, {Replicate()});
      const mt::DTensor q = distributed(inputs[0], line(n), {Shard(2)});
      const mt::DTensor k = distributed(inputs[1], line(n), {Replicate()});
      const mt::CommDebugMode comm;
      attention({q, k, k}, {}, is_causal);
      EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    }
  });
}

TEST(ContextParallel, HeadsAndSequenceOnOneMesh) {
  on_ranks(4, [](int) {
    for (const auto& names : {mt::DeviceMesh::Names{"cp", "tp"}, mt::DeviceMesh::Names{"tp", "cp"}}) {
      const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, names);
      const bool cp_first = names[0] == "cp";
      const Placements both = cp_first ? Placements{Shard(2), Shard(1)} : Placements{Shard(1), Shard(2)};
      for (const RotateMethod method : kMethods) {
        SCOPED_TRACE(c10::str(mt::to_string(method), " on ", mesh.to_string()));
        mt::set_rotate_method(method);
        check_attention({qkv(2, 8, 4, 11, 11), {}, true}, mesh, both, both);
        check_attention({qkv(2, 4, 4, 10, 12), numbers({2, 4, 10, 12}, torch::kDouble, 4), false}, mesh, both,
                        both);
        mt::set_rotate_method(RotateMethod::automatic);
      }
      // The batch on one axis, the sequence on the other, and the sequence on both.
      const Placements with_batch =
          cp_first ? Placements{Shard(2), Shard(0)} : Placements{Shard(0), Shard(2)};
      check_attention({qkv(3, 4, 2, 11, 11), {}, true}, mesh, with_batch, with_batch);
      check_attention({qkv(3, 4, 2, 11, 11), {}, true}, mesh, {Shard(2), Shard(2)}, {Shard(2), Shard(2)});
      check_attention({qkv(3, 4, 2, 11, 11), {}, true}, mesh, {mt::StridedShard(2, 2), Shard(2)},
                      {mt::StridedShard(2, 2), Shard(2)});
    }
  });
}

struct Traffic {
  std::map<mt::Collective, int64_t> counts;
  int64_t bytes = 0;
  friend bool operator==(const Traffic&, const Traffic&) = default;
};

Traffic traffic_of(const mt::CommDebugMode& comm) {
  Traffic traffic;
  for (const auto& [collective, statistics] : comm.get_comm_counts().statistics()) {
    traffic.counts[collective] = statistics.count;
    traffic.bytes += statistics.bytes_sent;
  }
  return traffic;
}

// Of B x H x S x E elements, each rank has a part of a 4th.
TEST(ContextParallel, EachWaySendsWhatItsFormulaSays) {
  on_ranks(4, [](int) {
    constexpr int64_t n = 4, heads = 8, key_heads = 4, rows = 16, size = 8, item = 8;
    constexpr int64_t query_part = heads * rows * size * item / n;
    constexpr int64_t key_part = key_heads * rows * size * item / n;
    constexpr int64_t logsumexp_part = heads * rows * item / n;
    using C = mt::Collective;
    struct Expected {
      RotateMethod method;
      Traffic forward, backward;
    };
    const std::vector<Expected> cases{
        // Keys and values are gathered, again in backward, where their gradients are scattered.
        {RotateMethod::allgather,
         {{{C::all_gather_into_tensor, 1}}, (n - 1) * 2 * key_part},
         {{{C::all_gather_into_tensor, 1}, {C::reduce_scatter_tensor, 1}}, 2 * (n - 1) * 2 * key_part}},
        // They go round; in backward with their gradients, which also come home.
        {RotateMethod::ring,
         {{{C::send, n - 1}, {C::recv, n - 1}}, (n - 1) * 2 * key_part},
         {{{C::send, 2 * n - 1}, {C::recv, 2 * n - 1}}, (2 * n - 1) * 2 * key_part}},
        // Queries, keys, values there; output and log-sum-exp back.
        {RotateMethod::ulysses,
         {{{C::all_to_all_single, 5}}, (n - 1) * (2 * query_part + 2 * key_part + logsumexp_part) / n},
         {{{C::all_to_all_single, 9}}, (n - 1) * (4 * query_part + 4 * key_part + logsumexp_part) / n}},
    };
    const mt::DeviceMesh mesh = line(n);
    const auto inputs = qkv(1, heads, key_heads, rows, rows);
    for (const Expected& expected : cases) {
      SCOPED_TRACE(mt::to_string(expected.method));
      mt::set_rotate_method(expected.method);
      std::vector<torch::Tensor> split;
      for (const torch::Tensor& t : inputs)
        split.push_back(distributed(t.clone().requires_grad_(), mesh, {Shard(2)}));
      mt::CommDebugMode comm;
      const torch::Tensor out = attention(split, {}, true);
      EXPECT_EQ(traffic_of(comm), expected.forward) << comm.table();
      const torch::Tensor gradient = distributed(torch::ones(out.sizes(), torch::kDouble), mesh, {Shard(2)});
      comm.restart();
      out.backward(gradient);
      EXPECT_EQ(traffic_of(comm), expected.backward) << comm.table();
      mt::set_rotate_method(RotateMethod::automatic);
    }
  });
}

TEST(ContextParallel, TheCheaperWayIsChosen) {
  on_ranks(4, [](int) {
    const auto way_of = [](int64_t heads, int64_t key_heads, int64_t size) {
      const mt::DTensor q = mt::zeros({1, heads, size, size}, line(4), {Shard(2)});
      const mt::DTensor k = mt::zeros({1, key_heads, size, size}, line(4), {Shard(2)});
      const mt::CommDebugMode comm;
      attention({q, k, k}, {}, true);
      return comm.get_comm_counts()[mt::Collective::all_to_all_single] > 0 ? "ulysses" : "allgather";
    };
    EXPECT_STREQ(way_of(4, 4, 8), "allgather");     // one collective is the quickest
    EXPECT_STREQ(way_of(4, 4, 256), "ulysses");     // half of the bytes
    EXPECT_STREQ(way_of(32, 4, 256), "allgather");  // few keys
    EXPECT_STREQ(way_of(6, 6, 256), "allgather");   // 4 does not divide the heads
  });
}

TEST(ContextParallel, WrongWaysAreRefused) {
  on_ranks(2, [](int) {
    EXPECT_EQ(error_of([] { mt::set_rotate_method("somehow"); }),
              "meshtorch: unknown rotate method \"somehow\"\n  in: set_rotate_method\n"
              "  do: use auto, allgather, alltoall (the ring) or ulysses");
    mt::set_rotate_method("alltoall");
    EXPECT_EQ(mt::get_rotate_method(), RotateMethod::ring);
    mt::set_rotate_method("ulysses");
    const mt::DTensor q = mt::zeros({1, 3, 4, 8}, line(2), {Shard(2)});
    const std::string error = error_of([&] { attention({q, q, q}, {}, false); });
    EXPECT_NE(error.find("attention by ulysses needs key heads that the mesh axes divide\n"
                         "  heads of queries: 3, of keys: 3"),
              std::string::npos)
        << error;
    mt::set_rotate_method("auto");
  });
}

TEST(ContextParallel, RanksOutsideTheMeshTakeNoPart) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1});
    const auto inputs = qkv(1, 2, 2, 6, 6);
    std::vector<torch::Tensor> split;
    for (const torch::Tensor& t : inputs)
      split.push_back(distributed(t.clone().requires_grad_(), mesh, {Shard(2)}));
    const torch::Tensor out = attention(split, {}, true);
    out.sum().backward();
    if (mesh.get_coordinate()) {
      EXPECT_TRUE(is_close(mt::full_tensor(out).detach(), attention(inputs, {}, true), 1e-9));
    }
  });
}

// A causal layer of attention with a residual, whose positions come from a table.
torch::Tensor layer(const torch::Tensor& x, const torch::Tensor& table) {
  const torch::Tensor heads = (x + table).unflatten(2, {2, 4}).transpose(1, 2);
  return x + attention({heads, heads, heads}, {}, true).transpose(1, 2).flatten(2);
}

TEST_P(ContextParallel, AScopeSplitsItsBuffersAndGivesThemBack) {
  const int n = GetParam();
  on_ranks(n, [&](int) {
    const mt::DeviceMesh mesh = line(n);
    for (const bool load_balance : {true, false}) {
      for (const RotateMethod method : {RotateMethod::allgather, RotateMethod::ring}) {
        SCOPED_TRACE(c10::str(mt::to_string(method), load_balance ? " balanced" : ""));
        mt::set_rotate_method(method);
        const int64_t length = load_balance ? 24 : 13;
        const torch::Tensor x = numbers({2, length, 8}, torch::kDouble, 1);
        const torch::Tensor table = numbers({length, 8}, torch::kDouble, 2);
        const torch::Tensor weight = numbers({8, 8}, torch::kDouble, 3);
        const torch::Tensor plain = weight.clone().requires_grad_();
        const torch::Tensor expected = layer(x.matmul(plain), table);
        expected.square().sum().backward();

        const torch::Tensor input = x.clone();
        const torch::Tensor positions = table.clone();
        const mt::DTensor shared = distributed(weight.clone().requires_grad_(), mesh, {Replicate()});
        torch::Tensor loss;
        torch::Tensor whole;
        {
          const mt::context_parallel scope(mesh, {input, positions}, {1, 0}, {.load_balance = load_balance});
          EXPECT_EQ(mt::placements(input), Placements{Shard(1)});
          const torch::Tensor out = layer(input.matmul(shared), positions);
          EXPECT_EQ(mt::placements(out), Placements{Shard(1)});
          loss = out.square().sum();
          loss.backward();
          whole = mt::context_parallel_unshard(mesh, {out}, {1}, load_balance)[0].detach();
        }
        EXPECT_TRUE(is_close(whole, expected.detach(), 1e-9));
        EXPECT_TRUE(is_close(mt::full_tensor(shared.grad()), plain.grad(), 1e-9));
        EXPECT_TRUE(is_equal(input, x));
        EXPECT_TRUE(is_equal(positions, table));
        mt::set_rotate_method(RotateMethod::automatic);
      }
    }
  });
}

TEST_P(ContextParallel, EachRankHasAPieceFromTheFrontAndOneFromTheBack) {
  const int n = GetParam();
  on_ranks(n, [&](int rank) {
    const torch::Tensor x = torch::arange(4 * n);
    const torch::Tensor kept = torch::arange(4 * n);
    {
      const mt::context_parallel scope(line(n), {x, kept}, {0, 0}, {.no_restore_buffers = {kept}});
      const torch::Tensor front = torch::tensor({2 * rank, 2 * rank + 1}, torch::kLong);
      EXPECT_TRUE(is_equal(mt::to_local(x), torch::cat({front, (4 * n - 1 - front).flip(0)})));
    }
    EXPECT_TRUE(is_equal(x, torch::arange(4 * n)));
    EXPECT_TRUE(mt::is_dtensor(kept));
  });
}

TEST(ContextParallel, AScopeRefusesWhatItCannotSplit) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    EXPECT_EQ(error_of([&] { mt::context_parallel(mesh, {torch::ones({6})}, {0}); }),
              "meshtorch: a sequence in balanced order must be a multiple of twice the ranks long\n"
              "  length: 6, pieces: 4\n  do: pad it, or open context_parallel with load_balance off");
    EXPECT_EQ(error_of([&] { mt::context_parallel(mesh, {torch::ones({4})}, {}); }),
              "meshtorch: context_parallel got 1 buffers and 0 sequence dims\n"
              "  do: give one dim for each buffer");
    EXPECT_NE(error_of([&] { mt::context_parallel(mesh, {torch::ones({4})}, {1}); }).find("has no dim 1"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                mt::context_parallel(mesh, {torch::ones({4}).requires_grad_()}, {0});
              }).find("buffer 0 requires gradients"),
              std::string::npos);
    EXPECT_NE(error_of([&] {
                mt::context_parallel(mt::init_device_mesh(torch::kCPU, {1, 2}), {torch::ones({4})}, {0});
              }).find("needs a mesh of one axis"),
              std::string::npos);
    const torch::Tensor twice = torch::ones({4});
    EXPECT_EQ(
        error_of([&] { mt::context_parallel(mesh, {twice, twice}, {0, 0}); }),
        "meshtorch: context_parallel got the same tensor as buffers 0 and 1\n  do: give each buffer once");
    EXPECT_FALSE(mt::is_dtensor(twice));
  });
}

}  // namespace
}  // namespace meshtorch::testing
