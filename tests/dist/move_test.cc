// Collectives that move data: all_gather, all_to_all, broadcast, permute and barrier, against plain
// operators.
#include "rank_data.h"

namespace meshtorch::testing {
namespace {

class Move : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(On, Move, ::testing::Range(1, 5), ranks_in_name);

TEST_P(Move, AllGatherPutsEveryTypeTogether) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : all_types()) {
      for (const std::int64_t dim : {0, 1, -1}) {
        SCOPED_TRACE(c10::toString(type));
        const auto parts = samples(n, {2, 3}, type);
        EXPECT_TRUE(is_equal(mt::all_gather_tensor(parts[static_cast<std::size_t>(rank)], dim, {}),
                             torch::cat(parts, dim)));
      }
    }
  });
}

TEST_P(Move, AllGatherTakesUnevenAndEmptyShards) {
  on_all([](int rank, int n) {
    const std::vector<mt::Splits> patterns{
        {3, 3, 2, 0}, {0, 0, 0, 5}, {1, 0, 2, 1}, {0, 0, 0, 0}, {4, 1, 4, 1}};
    for (const mt::Splits& pattern : patterns) {
      for (const std::int64_t dim : {0, 1, -1}) {
        for (const at::ScalarType type : kTypes) {
          const mt::Splits sizes(pattern.begin(), pattern.begin() + n);
          std::vector<torch::Tensor> parts;
          for (int r = 0; r < n; ++r) {
            std::vector<std::int64_t> shape{2, 2};
            shape[dim == 0 ? 0 : 1] = sizes[static_cast<std::size_t>(r)];
            parts.push_back(sample(r, shape, type));
          }
          SCOPED_TRACE(c10::str("sizes ", sizes, " at dim ", dim, " of ", type));
          EXPECT_TRUE(is_equal(mt::all_gather_tensor(parts[static_cast<std::size_t>(rank)], dim, {}, sizes),
                               torch::cat(parts, dim)));
        }
      }
    }
  });
}

TEST_P(Move, AllGatherTakesScalarsEmptyAndStridedTensors) {
  on_all([](int rank, int n) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(samples(n, {})[r], 0, {}), torch::stack(samples(n, {}))));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(samples(n, {})[r], -1, {}), torch::stack(samples(n, {}))));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(torch::empty({0, 2}), 1, {}), torch::empty({0, 2 * n})));
    std::vector<torch::Tensor> turned;
    for (const torch::Tensor& t : samples(n, {3, 2})) turned.push_back(t.t());
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(turned[r], 1, {}), torch::cat(turned, 1)));
  });
}

TEST_P(Move, AllGatherCoalescedGathersEachTensor) {
  on_all([](int rank, int n) {
    const auto r = static_cast<std::size_t>(rank);
    const auto a = samples(n, {2, 3}, at::kFloat, 1);
    const auto b = samples(n, {4}, at::kFloat, 2);
    const auto c = samples(n, {}, at::kFloat, 3);
    const auto results = mt::all_gather_into_tensor_coalesced({a[r], b[r], c[r]}, {});
    ASSERT_EQ(results.size(), 3U);
    EXPECT_TRUE(is_equal(results[0], torch::cat(a)));
    EXPECT_TRUE(is_equal(results[1], torch::cat(b)));
    EXPECT_TRUE(is_equal(results[2], torch::stack(c)));
    for (const at::ScalarType type : all_types()) {
      const auto x = samples(n, {3, 1}, type);
      EXPECT_TRUE(is_equal(mt::all_gather_into_tensor_coalesced({x[r]}, {})[0], torch::cat(x))) << type;
    }
    EXPECT_TRUE(mt::all_gather_into_tensor_coalesced({}, {}).empty());
  });
}

// Rank r sends (r + to + shift) % 3 rows to rank `to`.
std::int64_t rows_from_to(int from, int to, int shift) { return (from + to + shift) % 3; }

TEST_P(Move, AllToAllSendsUnevenSplits) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : all_types()) {
      for (const int shift : {0, 1, 2}) {
        std::vector<torch::Tensor> inputs;
        std::vector<mt::Splits> splits;
        for (int from = 0; from < n; ++from) {
          mt::Splits sends;
          for (int to = 0; to < n; ++to) sends.push_back(rows_from_to(from, to, shift));
          inputs.push_back(
              sample(from, {std::accumulate(sends.begin(), sends.end(), std::int64_t{0}), 2}, type));
          splits.push_back(sends);
        }
        mt::Splits receives;
        std::vector<torch::Tensor> expected;
        for (int from = 0; from < n; ++from) {
          receives.push_back(rows_from_to(from, rank, shift));
          expected.push_back(inputs[static_cast<std::size_t>(from)].split_with_sizes(
              splits[static_cast<std::size_t>(from)])[static_cast<std::size_t>(rank)]);
        }
        const auto r = static_cast<std::size_t>(rank);
        EXPECT_TRUE(is_equal(mt::all_to_all_single(inputs[r], receives, splits[r], {}), torch::cat(expected)))
            << type;
      }
    }
  });
}

TEST_P(Move, AllToAllWithoutSplitsSendsEqualParts) {
  on_all([](int rank, int n) {
    const auto inputs = samples(n, {2 * n, 3});
    std::vector<torch::Tensor> expected;
    for (const torch::Tensor& t : inputs) expected.push_back(t.narrow(0, 2 * rank, 2));
    EXPECT_TRUE(is_equal(mt::all_to_all_single(inputs[static_cast<std::size_t>(rank)], {}, {}, {}),
                         torch::cat(expected)));
    EXPECT_TRUE(is_equal(mt::all_to_all_single(torch::empty({0, 3}), {}, {}, {}), torch::empty({0, 3})));
    const torch::Tensor turned = inputs[static_cast<std::size_t>(rank)].t().contiguous().t();
    EXPECT_TRUE(is_equal(mt::all_to_all_single(turned, {}, {}, {}), torch::cat(expected)));
  });
}

TEST_P(Move, BroadcastGivesTheSourcesTensor) {
  on_all([](int rank, int n) {
    for (int source = 0; source < n; ++source) {
      for (const at::ScalarType type : all_types()) {
        const torch::Tensor mine = sample(rank, {2, 3}, type);
        EXPECT_TRUE(is_equal(mt::broadcast(mine, source, {}), sample(source, {2, 3}, type))) << type;
        EXPECT_TRUE(is_equal(mine, sample(rank, {2, 3}, type))) << "the input was changed";
      }
      EXPECT_TRUE(is_equal(mt::broadcast(sample(rank, {}), source, {}), sample(source, {})));
      EXPECT_TRUE(is_equal(mt::broadcast(torch::empty({0}), source, {}), torch::empty({0})));
      EXPECT_TRUE(is_equal(mt::broadcast(sample(rank, {2, 3}).t(), source, {}), sample(source, {2, 3}).t()));
    }
  });
}

TEST_P(Move, PermuteSendsAlongThePairsAndGivesZerosElsewhere) {
  on_all([](int rank, int n) {
    mt::RankPairs ring;
    for (int r = 0; r < n; ++r) ring.emplace_back(r, (r + 1) % n);
    for (const at::ScalarType type : all_types()) {
      EXPECT_TRUE(is_equal(mt::permute_tensor(sample(rank, {2, 3}, type), ring, {}),
                           sample((rank + n - 1) % n, {2, 3}, type)))
          << type;
    }
    EXPECT_TRUE(is_equal(mt::permute_tensor(sample(rank, {}), ring, {}), sample((rank + n - 1) % n, {})));
    EXPECT_TRUE(is_equal(mt::permute_tensor(torch::empty({0, 2}), ring, {}), torch::empty({0, 2})));
    const torch::Tensor one_way = mt::permute_tensor(sample(rank, {3}), {{0, n - 1}}, {});
    EXPECT_TRUE(is_equal(one_way, rank == n - 1 ? sample(0, {3}) : torch::zeros({3})));
    EXPECT_TRUE(is_equal(mt::permute_tensor(sample(rank, {3}), {}, {}), torch::zeros({3})));
  });
}

TEST_P(Move, GroupsMayBePartsOfTheWorld) {
  on_all([](int rank, int n) {
    const std::vector<std::int64_t> ranks =
        n == 1 ? std::vector<std::int64_t>{0} : std::vector<std::int64_t>{n - 1, 0};
    const mt::Group group(ranks);
    mt::barrier();
    if (group.rank() < 0) return;
    std::vector<torch::Tensor> parts;
    for (const std::int64_t r : ranks) parts.push_back(sample(static_cast<int>(r), {2}));
    EXPECT_TRUE(is_equal(mt::all_gather_tensor(sample(rank, {2}), 0, group), torch::cat(parts)));
    EXPECT_TRUE(
        is_equal(mt::all_reduce(sample(rank, {2}), "sum", group.process_group()), reduced(parts, "sum")));
  });
}

}  // namespace
}  // namespace meshtorch::testing
