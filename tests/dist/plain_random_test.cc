// Plain random numbers on ranks that are threads: each rank has a generator, as a process has.
#include "ranks.h"

namespace meshtorch::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

// What draws plain random numbers, each in another way: factories, in place, operators, modules, backward.
Tensors drawn() {
  Tensors all;
  all.push_back(torch::rand({3, 5}));
  all.push_back(torch::randn({7}, torch::kDouble));
  all.push_back(torch::randint(0, 1000, {4}));
  all.push_back(torch::randperm(9));
  all.push_back(torch::rand_like(all[0]));
  all.push_back(torch::empty({6}).uniform_(2, 3));
  all.push_back(torch::empty({6}).normal_());
  all.push_back(torch::empty({6}).exponential_());
  all.push_back(torch::bernoulli(all[0]));
  all.push_back(torch::multinomial(all[0], 2));
  all.push_back(torch::poisson(all[0] * 10));
  all.push_back(torch::dropout(torch::ones({20}), 0.5, /*train=*/true));
  all.push_back(torch::rrelu(-all[0], 0.1, 0.9, /*training=*/true));
  all.push_back(torch::normal(0.0, 1.0, {5}));
  all.push_back(torch::nn::Linear(4, 3)->weight.detach());
  const torch::Tensor x = torch::ones({5}).requires_grad_();
  const torch::Tensor y = x * 2;
  y.register_hook([](const torch::Tensor& g) { return g * torch::rand_like(g); });
  y.sum().backward();
  all.push_back(x.grad());
  return all;
}

Tensors drawn_with(std::uint64_t seed) {
  torch::manual_seed(seed);
  return drawn();
}

void expect_same_numbers(const Tensors& actual, const Tensors& expected) {
  ASSERT_EQ(actual.size(), expected.size());
  for (std::size_t i = 0; i < actual.size(); ++i) EXPECT_TRUE(is_equal(actual[i], expected[i])) << i;
}

TEST(PlainRandom, RanksWithOneSeedDrawTheSameNumbers) {
  const Tensors expected = drawn_with(7);
  for (int repetition = 0; repetition < 20; ++repetition)
    mt::spawn(4, [&](int) { expect_same_numbers(drawn_with(7), expected); });
}

TEST(PlainRandom, RanksWithTheirOwnSeedsDrawTheirOwnNumbers) {
  std::vector<Tensors> expected;
  for (std::uint64_t seed = 0; seed < 3; ++seed) expected.push_back(drawn_with(seed));
  for (int repetition = 0; repetition < 20; ++repetition) {
    mt::spawn(3, [&](int rank) {
      expect_same_numbers(drawn_with(static_cast<std::uint64_t>(rank)),
                          expected[static_cast<std::size_t>(rank)]);
    });
  }
}

TEST(PlainRandom, RanksStartWhereTheirProcessIsAndLeaveItThere) {
  torch::manual_seed(5);
  torch::rand({3});
  const torch::Tensor state = at::detail::getDefaultCPUGenerator().get_state();
  const Tensors expected = drawn();
  auto generator = at::detail::getDefaultCPUGenerator();
  generator.set_state(state);
  mt::spawn(3, [&](int rank) {
    expect_same_numbers(drawn(), expected);
    torch::manual_seed(static_cast<std::uint64_t>(rank));
  });
  expect_same_numbers(drawn(), expected);
}

TEST(PlainRandom, StatesAreThoseOfTheRank) {
  mt::spawn(3, [&](int rank) {
    const auto seed = static_cast<std::uint64_t>(100 + rank);
    torch::manual_seed(seed);
    auto generator = at::detail::getDefaultCPUGenerator();
    EXPECT_EQ(generator.current_seed(), seed);
    const torch::Tensor state = generator.get_state();
    auto copy = generator.clone();
    const torch::Tensor once = torch::rand({5});
    mt::barrier();
    EXPECT_FALSE(torch::equal(torch::rand({5}), once));
    generator.set_state(state);
    mt::barrier();
    EXPECT_TRUE(is_equal(torch::rand({5}), once));
    EXPECT_TRUE(is_equal(torch::empty({5}).uniform_(0, 1, copy), once));
  });
}

TEST(PlainRandom, AnExplicitGeneratorIsUsed) {
  auto generator = at::detail::createCPUGenerator(3);
  const torch::Tensor expected = torch::rand({4}, generator);
  mt::spawn(2, [&](int) {
    auto mine = at::detail::createCPUGenerator(3);
    EXPECT_TRUE(is_equal(torch::rand({4}, mine), expected));
  });
}

}  // namespace
}  // namespace meshtorch::testing
