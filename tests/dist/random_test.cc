// Random numbers do not depend on mesh, placements or the number of ranks.
#include "one_rank.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

using Make = std::function<torch::Tensor(const mt::DeviceMesh&, const Placements&)>;

struct NamedMake {
  std::string name;
  int64_t dims;
  Make make;
};

std::vector<NamedMake> makers() {
  std::vector<NamedMake> all;
  for (const std::vector<int64_t>& size :
       std::vector<std::vector<int64_t>>{{7, 5}, {8, 4}, {2, 3}, {1, 9}, {40, 17}}) {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf,
                            torch::kComplexFloat, torch::kComplexDouble}) {
      all.push_back(
          {"rand", 2, [=](const auto& mesh, const auto& p) { return mt::rand(size, mesh, p, type); }});
      all.push_back(
          {"randn", 2, [=](const auto& mesh, const auto& p) { return mt::randn(size, mesh, p, type); }});
    }
    for (const auto type : {torch::kLong, torch::kInt, torch::kFloat}) {
      all.push_back({"randint", 2, [=](const auto& mesh, const auto& p) {
                       return mt::randint(-4, 90, size, mesh, p, type);
                     }});
    }
  }
  for (const int64_t n : {0, 1, 7, 100}) {
    all.push_back({"randperm", 1, [=](const auto& mesh, const auto& p) { return mt::randperm(n, mesh, p); }});
    all.push_back({"rand", 1, [=](const auto& mesh, const auto& p) { return mt::rand({n}, mesh, p); }});
  }
  all.push_back({"randn", 0, [](const auto& mesh, const auto& p) { return mt::randn({}, mesh, p); }});
  return all;
}

// Every maker under these placements gives on all ranks together what it gives on one.
void expect_same_fills(const mt::DeviceMesh& mesh, const std::vector<Placements>& choices) {
  for (const NamedMake& maker : makers()) {
    for (const Placements& placements : choices) {
      const bool fits = std::all_of(placements.begin(), placements.end(), [&](const mt::Placement& p) {
        return !p.is_shard() || p.dim() < maker.dims;
      });
      if (!fits) continue;
      const mt::RngState state = mt::get_rng_state();
      const mt::DTensor x = maker.make(mesh, placements);
      const torch::Tensor whole = on_one_rank(state, maker.make);
      const mt::DTensor expected =
          mt::distribute_tensor(whole, mesh, placements, {.src_data_rank = std::nullopt});
      EXPECT_TRUE(is_equal(x.to_local(), expected.to_local()))
          << maker.name << " " << mt::to_string(placements);
      EXPECT_EQ(x.placements(), placements);
    }
  }
}

TEST(Random, IsTheSameOnAnyNumberOfRanks) {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n,
             [n](int) { expect_same_fills(line(n), {{Replicate()}, {Shard(0)}, {Shard(1)}, {Partial()}}); });
  }
}

TEST(Random, PendingReductionsOfEveryKindGiveTheSame) {
  on_ranks(3, [](int) {
    const auto make = [](const auto& mesh, const auto& p) { return mt::randn({5, 4}, mesh, p); };
    for (const auto op : {mt::ReduceOp::sum, mt::ReduceOp::avg, mt::ReduceOp::max, mt::ReduceOp::min,
                          mt::ReduceOp::product}) {
      const mt::RngState state = mt::get_rng_state();
      const mt::DTensor x = make(line(3), Placements{Partial(op)});
      // A mean of three equal numbers is rounded.
      EXPECT_TRUE(is_close(x.full_tensor(), on_one_rank(state, make))) << mt::to_string(x.placements());
    }
  });
}

TEST(Random, IsTheSameOnAnyMeshAndPlacement) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    std::vector<Placements> choices;
    for (const mt::Placement& a : std::vector<mt::Placement>{Replicate(), Shard(0), Shard(1), Partial()}) {
      for (const mt::Placement& b : std::vector<mt::Placement>{Replicate(), Shard(0), Shard(1), Partial()})
        choices.push_back({a, b});
    }
    expect_same_fills(mesh, choices);
  });
}

TEST(Random, IsPhiloxOfSeedCallAndIndex) {
  on_ranks(2, [](int) {
    mt::manual_seed(0);
    // The first word of Philox4x32-10 with counter 0 and key 0 is 6627e8d5; a float takes its upper 24 bits.
    EXPECT_EQ(mt::rand({6}, line(2), {Shard(0)}).full_tensor()[0].item<float>(),
              static_cast<float>(0x6627e8) / 0x1000000);
    mt::set_rng_state({.seed = 0x299f31d0a4093822, .call = 0x0370734413198a2e});
    EXPECT_EQ(mt::get_rng_state().call, 0x0370734413198a2e);
  });
}

TEST(Random, TwoCallsDiffer) {
  on_ranks(2, [](int) {
    EXPECT_FALSE(torch::equal(mt::rand({8}, line(2), {Shard(0)}).full_tensor(),
                              mt::rand({8}, line(2), {Shard(0)}).full_tensor()));
  });
}

TEST(Random, ShardsDiffer) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = mt::randn({8}, line(2), {Shard(0)}).full_tensor();
    EXPECT_FALSE(torch::equal(whole.narrow(0, 0, 4), whole.narrow(0, 4, 4)));
  });
}

TEST(Random, ReplicatedNumbersAreEqualOnAllRanks) {
  on_ranks(3, [](int) {
    const mt::DTensor x = mt::randn({5, 2}, line(3), {Replicate()});
    const torch::Tensor everyones = mt::wait_tensor(mt::all_gather_tensor(x.to_local(), 0, line(3)));
    for (int rank = 0; rank < 3; ++rank)
      EXPECT_TRUE(is_equal(everyones.narrow(0, 5 * rank, 5), x.to_local()));
  });
}

TEST(Random, NeedsNoCommunication) {
  on_ranks(3, [](int) {
    const mt::CommDebugMode comm;
    mt::DTensor x = mt::randn({7, 2}, line(3), {Shard(0)});
    x.uniform_(-1, 1);
    mt::randperm(7, line(3), {Shard(0)});
    torch::dropout(x, 0.5, true);
    torch::rand_like(mt::zeros({4}, line(3), {Partial()}));
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

TEST(RngState, SeedsStartAgainAndDiffer) {
  on_ranks(2, [](int) {
    const auto draw = [](uint64_t seed) {
      mt::manual_seed(seed);
      return mt::rand({9}, line(2), {Shard(0)}).full_tensor();
    };
    const torch::Tensor first = draw(7);
    EXPECT_FALSE(torch::equal(first, draw(8)));
    EXPECT_FALSE(torch::equal(first, draw(7 + (uint64_t{1} << 32))));
    EXPECT_TRUE(is_equal(draw(7), first));
  });
}

TEST(RngState, CanBeSavedAndRestored) {
  on_ranks(2, [](int) {
    mt::manual_seed(3);
    mt::rand({9}, line(2), {Shard(0)});
    const mt::RngState state = mt::get_rng_state();
    EXPECT_EQ(state, (mt::RngState{.seed = 3, .call = 1}));
    const torch::Tensor bytes = state.to_tensor();
    EXPECT_EQ(bytes.scalar_type(), torch::kByte);
    const torch::Tensor next = mt::randn({9}, line(2), {Shard(0)}).full_tensor();
    mt::set_rng_state(mt::RngState::from_tensor(bytes));
    EXPECT_TRUE(is_equal(mt::randn({9}, line(2), {Replicate()}).to_local(), next));
    const std::string error = error_of([] { mt::RngState::from_tensor(torch::zeros({3})); });
    EXPECT_NE(error.find("a random state is 16 bytes, not a tensor of type Float and shape [3]"),
              std::string::npos)
        << error;
    EXPECT_NE(error.find("do: pass what RngState::to_tensor gave"), std::string::npos) << error;
  });
}

TEST(RngState, OfARankThatHasNotSeededIsTheDefault) {
  on_ranks(2,
           [](int) { EXPECT_EQ(mt::get_rng_state(), (mt::RngState{.seed = mt::kDefaultSeed, .call = 0})); });
}

TEST(RngState, SetBeforeJoiningIsWhereRanksStart) {
  mt::manual_seed(5);
  on_ranks(2, [](int) { EXPECT_EQ(mt::get_rng_state(), (mt::RngState{.seed = 5, .call = 0})); });
  mt::set_rng_state({});
  EXPECT_EQ(mt::get_rng_state(), mt::RngState{});
}

TEST(RngState, OfTorchIsLeftAlone) {
  on_ranks(2, [](int) {
    torch::manual_seed(1);
    const torch::Tensor expected = torch::rand({100});
    torch::manual_seed(1);
    mt::DTensor x = mt::randn({9}, line(2), {Shard(0)});
    x.bernoulli_(0.5);
    torch::dropout(x, 0.5, true);
    torch::multinomial(x.abs() + 1, 3);
    EXPECT_TRUE(is_equal(torch::rand({100}), expected));
  });
}

TEST(Factories, OfRandomNumbersTakeOptions) {
  on_ranks(2, [](int) {
    EXPECT_TRUE(mt::rand({4}, line(2), {Shard(0)}, torch::requires_grad()).requires_grad());
    EXPECT_EQ(mt::randint(5, {4}, line(2), {Shard(0)}).scalar_type(), torch::kLong);
    EXPECT_EQ(mt::randperm(5, line(2), {Shard(0)}, torch::kInt).scalar_type(), torch::kInt);
    EXPECT_TRUE(
        is_equal(std::get<0>(mt::randperm(50, line(2), {Shard(0)}).full_tensor().sort()), torch::arange(50)));
    EXPECT_NE(error_of([] {
                mt::randint(5, 5, {4}, line(2), {Shard(0)});
              }).find("there is no integer from 5 to below 5"),
              std::string::npos);
    EXPECT_NE(
        error_of([] { mt::randperm(-1, line(2), {Shard(0)}); }).find("a permutation has no -1 elements"),
        std::string::npos);
  });
}

}  // namespace
}  // namespace meshtorch::testing
