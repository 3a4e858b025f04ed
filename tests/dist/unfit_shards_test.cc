// Shards that are no split of one tensor: an error on every rank, before the backend sees sizes that differ.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

struct FirstUse {
  std::string name;
  std::function<void(const DTensor& x)> use;
};

std::vector<FirstUse> first_uses() {
  return {
      {"full_tensor", [](const DTensor& x) { x.full_tensor(); }},
      {"redistribute", [](const DTensor& x) { mt::wait_tensor(x.redistribute({Shard(1)}).to_local()); }},
      {"a sum", [](const DTensor& x) { x.sum().item<float>(); }},
      {"a sum along the split dim", [](const DTensor& x) { DTensor(x.sum(0)).full_tensor(); }},
      {"an operator that needs it whole",
       [](const DTensor& x) { DTensor(torch::cumsum(x, 0)).full_tensor(); }},
      {"an operator that moves the other",
       [](const DTensor& x) {
         const DTensor w = mt::distribute_tensor(numbers({4, 6}), x.device_mesh(), {Shard(0)});
         DTensor(torch::mm(x, w)).full_tensor();
       }},
      {"after operators that need nothing", [](const DTensor& x) { DTensor((x * 2).relu()).full_tensor(); }},
  };
}

class ShardsFromLocal : public ::testing::TestWithParam<std::pair<const char*, std::vector<std::int64_t>>> {};

TEST_P(ShardsFromLocal, ShardsThatAreNoSplitAreAnErrorOnEveryRank) {
  for (const FirstUse& each : first_uses()) {
    on_ranks(4, [&](int rank) {
      const std::int64_t rows = GetParam().second[static_cast<std::size_t>(rank)];
      const DTensor x = DTensor::from_local(numbers({rows, 4}), line(4), {Shard(0)});
      const std::string error = error_of([&] { each.use(x); });
      EXPECT_NE(error.find("does not fit"), std::string::npos) << each.name << error;
    });
  }
}
INSTANTIATE_TEST_SUITE_P(
    , ShardsFromLocal,
    ::testing::Values(std::pair("AHoleInTheMiddle", std::vector<std::int64_t>{2, 2, 0, 2}),
                      std::pair("AHoleAtTheBeginning", std::vector<std::int64_t>{0, 2, 2, 2}),
                      std::pair("OneIsLonger", std::vector<std::int64_t>{2, 2, 2, 3})),
    [](const auto& each) { return std::string(each.param.first); });

// The shards are compared, once, when the first of what was computed from them communicates.
TEST(FromLocalShards, AreComparedOnce) {
  on_ranks(2, [](int) {
    const torch::Tensor x = DTensor::from_local(numbers({2, 4}), line(2), {Shard(0)});
    const torch::Tensor y = DTensor::from_local(numbers({2, 4}), line(2), {Shard(0)});
    const torch::Tensor both = (x * y).relu();
    EXPECT_TRUE(is_equal(DTensor(both.sum(1)).full_tensor(), numbers({2, 4}).square().sum(1).repeat({2})));
    EXPECT_TRUE(is_equal(DTensor(x + y).full_tensor(), (numbers({2, 4}) * 2).repeat({2, 1})));
  });
}

TEST(FromLocalShards, EmptyShardsOnAllRanksAreAnEmptyTensor) {
  on_ranks(3, [](int) {
    const DTensor x = DTensor::from_local(torch::empty({0, 4}), line(3), {Shard(0)});
    EXPECT_EQ(x.full_tensor().sizes(), at::IntArrayRef({0, 4}));
  });
}

}  // namespace
}  // namespace meshtorch::testing
