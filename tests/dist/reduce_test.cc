// Collectives that reduce: all_reduce, reduce_scatter_tensor and their coalesced forms, against plain
// operators.
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

class Reduce : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(On, Reduce, ::testing::Range(1, 5), ranks_in_name);

TEST_P(Reduce, AllReduceIsRightForEveryTypeAndReduction) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : all_types()) {
      for (const std::string& op : reductions_of(type)) {
        SCOPED_TRACE(op + " of " + c10::toString(type));
        const auto terms = samples(n, {3, 5}, type);
        const torch::Tensor mine = terms[static_cast<std::size_t>(rank)].clone();
        const torch::Tensor result = mt::all_reduce(mine, op, {});
        EXPECT_TRUE(
            is_close(result, reduced(terms, op), type == at::kBFloat16 || type == at::kHalf ? 1e-2 : 1e-6));
        EXPECT_TRUE(is_equal(mine, terms[static_cast<std::size_t>(rank)])) << "the input was changed";
      }
    }
  });
}

TEST_P(Reduce, AllReduceTakesScalarsEmptyAndStridedTensors) {
  on_all([](int rank, int n) {
    const auto r = static_cast<std::size_t>(rank);
    EXPECT_TRUE(is_equal(mt::all_reduce(samples(n, {})[r], "sum", {}), reduced(samples(n, {}), "sum")));
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::empty({0, 3}), "sum", {}), torch::empty({0, 3})));
    const auto terms = samples(n, {4, 6});
    EXPECT_TRUE(is_equal(mt::all_reduce(terms[r].t(), "max", {}), reduced(terms, "max").t()));
    EXPECT_TRUE(is_equal(mt::all_reduce(terms[r].slice(1, 1, 6, 2), "sum", {}),
                         reduced(terms, "sum").slice(1, 1, 6, 2)));
    EXPECT_TRUE(is_equal(mt::all_reduce(terms[r].select(0, 1).expand({3, 6}), "sum", {}),
                         reduced(terms, "sum").select(0, 1).expand({3, 6})));
  });
}

TEST_P(Reduce, AllReduceTakesLargeTensors) {
  on_all([](int rank, int n) {
    const auto terms = samples(n, {131, 151}, at::kLong);
    const torch::Tensor mine = terms[static_cast<std::size_t>(rank)];
    EXPECT_TRUE(is_equal(mt::all_reduce(mine, "sum", {}), reduced(terms, "sum")));
    EXPECT_TRUE(is_equal(mt::all_reduce(mine.t(), "max", {}), reduced(terms, "max").t()));
    EXPECT_TRUE(is_equal(mt::all_reduce_coalesced({mine[0], mine}, "min", {})[1], reduced(terms, "min")));
    // A user's own call, in place, on a tensor with gaps.
    if (ranks_are_processes()) return;  // gloo takes contiguous tensors only
    std::vector<torch::Tensor> turned{mine.clone().t()};
    mt::Group().process_group()->allreduce(turned)->wait();
    EXPECT_TRUE(is_equal(turned[0], reduced(terms, "sum").t()));
  });
}

// Below and above what ranks reduce whole, and what they show each other at a time, one after the other.
TEST_P(Reduce, AllReduceIsRightOverOneStageAndMany) {
  on_all([](int rank, int n) {
    for (int round = 0; round < 3; ++round) {
      for (const std::int64_t size : {4096, 4097, 65'536, 65'553, 400'003, 1'500'001}) {
        const auto terms = samples(n, {size}, at::kFloat, static_cast<std::uint64_t>(round));
        EXPECT_TRUE(
            is_equal(mt::all_reduce(terms[static_cast<std::size_t>(rank)], "sum", {}), reduced(terms, "sum")))
            << size;
      }
    }
  });
}

TEST_P(Reduce, AllReduceGivesTheSameBitsOnEveryRank) {
  on_all([](int rank, int n) {
    for (const std::int64_t size : {1001, 20001}) {
      auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(rank) + 7);
      const torch::Tensor sum = mt::all_reduce(torch::randn({size}, generator), "sum", {});
      const torch::Tensor rows = mt::all_gather_tensor(sum.unsqueeze(0), 0, {});
      for (int r = 0; r < n; ++r) EXPECT_TRUE(is_equal(rows[r], rows[0]));
    }
  });
}

TEST_P(Reduce, AllReduceCoalescedReducesEachTensor) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : kTypes) {
      const auto r = static_cast<std::size_t>(rank);
      const auto a = samples(n, {2, 3}, type, 1);
      const auto b = samples(n, {}, type, 2);
      const auto c = samples(n, {0}, type, 3);
      const auto results = mt::all_reduce_coalesced({a[r], b[r], c[r]}, "max", {});
      ASSERT_EQ(results.size(), 3U);
      EXPECT_TRUE(is_equal(results[0], reduced(a, "max")));
      EXPECT_TRUE(is_equal(results[1], reduced(b, "max")));
      EXPECT_TRUE(is_equal(results[2], c[r]));
    }
    EXPECT_TRUE(mt::all_reduce_coalesced({}, "sum", {}).empty());
    const auto x = samples(n, {3});
    EXPECT_TRUE(is_close(mt::all_reduce_coalesced({x[static_cast<std::size_t>(rank)]}, "avg", {})[0],
                         reduced(x, "avg")));
  });
}

TEST_P(Reduce, ReduceScatterIsRightForEveryTypeAndReduction) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : all_types()) {
      for (const std::string& op : reductions_of(type)) {
        SCOPED_TRACE(op + " of " + c10::toString(type));
        const auto terms = samples(n, {2 * n, 3}, type);
        const torch::Tensor result =
            mt::reduce_scatter_tensor(terms[static_cast<std::size_t>(rank)], op, 0, {});
        EXPECT_TRUE(is_close(result, part_of(reduced(terms, op), rank, n, 0),
                             type == at::kBFloat16 || type == at::kHalf ? 1e-2 : 1e-6));
      }
    }
  });
}

TEST_P(Reduce, ReduceScatterSplitsAnyDimUnevenly) {
  on_all([](int rank, int n) {
    for (const std::int64_t size : {0, 1, 2, 3, 4, 5, 6, 7, 9}) {
      for (const std::int64_t dim : {0, 1, 2, -1, -3}) {
        SCOPED_TRACE("size " + std::to_string(size) + " at dim " + std::to_string(dim));
        std::vector<std::int64_t> sizes{2, 3, 2};
        sizes[static_cast<std::size_t>(dim < 0 ? dim + 3 : dim)] = size;
        const auto terms = samples(n, sizes);
        const torch::Tensor result =
            mt::reduce_scatter_tensor(terms[static_cast<std::size_t>(rank)], "sum", dim, {});
        EXPECT_TRUE(is_equal(result, part_of(reduced(terms, "sum"), rank, n, dim)));
      }
    }
  });
}

TEST_P(Reduce, ReduceScatterTakesScalarsAndStridedTensors) {
  on_all([](int rank, int n) {
    const auto r = static_cast<std::size_t>(rank);
    const auto scalars = samples(n, {}, at::kLong);
    EXPECT_TRUE(is_equal(mt::reduce_scatter_tensor(scalars[r], "sum", 0, {}),
                         part_of(reduced(scalars, "sum").reshape({1}), rank, n, 0)));
    const auto terms = samples(n, {5, 6});
    EXPECT_TRUE(is_equal(mt::reduce_scatter_tensor(terms[r].t(), "min", 1, {}),
                         part_of(reduced(terms, "min").t(), rank, n, 1)));
  });
}

TEST_P(Reduce, ReduceScatterCoalescedSplitsEachTensorAtItsDim) {
  on_all([](int rank, int n) {
    for (const at::ScalarType type : kTypes) {
      const auto r = static_cast<std::size_t>(rank);
      const auto a = samples(n, {5, 3}, type, 1);
      const auto b = samples(n, {2, 7}, type, 2);
      const auto c = samples(n, {2 * n}, type, 3);
      const auto results = mt::reduce_scatter_tensor_coalesced({a[r], b[r], c[r]}, "sum", {0, -1, 0}, {});
      ASSERT_EQ(results.size(), 3U);
      EXPECT_TRUE(is_equal(results[0], part_of(reduced(a, "sum"), rank, n, 0)));
      EXPECT_TRUE(is_equal(results[1], part_of(reduced(b, "sum"), rank, n, 1)));
      EXPECT_TRUE(is_equal(results[2], part_of(reduced(c, "sum"), rank, n, 0)));
    }
    EXPECT_TRUE(mt::reduce_scatter_tensor_coalesced({}, "sum", {}, {}).empty());
  });
}

TEST_P(Reduce, ResultsOfOneCallDoNotDisturbEachOther) {
  on_all([](int rank, int n) {
    const torch::Tensor ones = torch::ones({2 * n});
    for (const auto& results : {mt::all_reduce_coalesced({ones, ones}, "avg", {}),
                                mt::reduce_scatter_tensor_coalesced({ones, ones}, "avg", {0, 0}, {}),
                                mt::all_gather_into_tensor_coalesced({ones, ones}, {})}) {
      const torch::Tensor first = results[0];
      EXPECT_TRUE(is_equal(first, torch::ones_like(first)));
      first.fill_(rank + 5);
      EXPECT_TRUE(is_equal(results[1], torch::ones_like(first)));
      EXPECT_TRUE(is_equal(first, torch::full_like(first, rank + 5)));
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
