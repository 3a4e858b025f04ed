// Random operators on distributed tensors: the same numbers on any number of ranks, with the right
// distribution.
#include "one_rank.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

using Operator = std::function<torch::Tensor(torch::Tensor)>;

// `op` on `whole`, distributed in every way, gives the same result and leaves the same in its argument as on
// one rank.
void expect_same_draws(const std::string& name, const torch::Tensor& whole, const Operator& op) {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [&](int) {
      for (const Placements& placements :
           std::vector<Placements>{{Replicate()}, {Shard(0)}, {Shard(1)}, {Partial()}}) {
        const auto run = [&](const mt::DeviceMesh& mesh, const Placements& p) {
          mt::manual_seed(42);
          mt::DTensor x = mt::distribute_tensor(whole, mesh, p);
          mt::DTensor y = op(x);
          return std::pair(x.full_tensor(), y.full_tensor());
        };
        const auto expected = run(alone(), {Replicate()});
        const auto actual = run(line(n), placements);
        EXPECT_TRUE(is_equal(actual.first, expected.first))
            << name << " on " << n << " ranks, " << mt::to_string(placements);
        EXPECT_TRUE(is_equal(actual.second, expected.second))
            << name << " on " << n << " ranks, " << mt::to_string(placements);
      }
    });
  }
}

torch::Tensor probabilities() { return (numbers({7, 5}) + 2).abs() / 8; }

TEST(RandomOperators, InPlaceAreTheSameOnAnyNumberOfRanks) {
  for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16}) {
    const torch::Tensor x = numbers({7, 5}, type);
    expect_same_draws("normal_", x, [](torch::Tensor t) { return t.normal_(1, 2); });
    expect_same_draws("uniform_", x, [](torch::Tensor t) { return t.uniform_(-3, 2); });
    expect_same_draws("exponential_", x, [](torch::Tensor t) { return t.exponential_(2); });
    expect_same_draws("cauchy_", x, [](torch::Tensor t) { return t.cauchy_(1, 2); });
    expect_same_draws("log_normal_", x, [](torch::Tensor t) { return t.log_normal_(0, 1); });
    expect_same_draws("bernoulli_", x, [](torch::Tensor t) { return t.bernoulli_(0.3); });
    expect_same_draws("random_", x, [](torch::Tensor t) { return t.random_(3, 40); });
  }
  for (const auto type : {torch::kLong, torch::kInt, torch::kByte}) {
    const torch::Tensor x = torch::zeros({7, 5}, type);
    expect_same_draws("random_", x, [](torch::Tensor t) { return t.random_(); });
    expect_same_draws("random_.to", x, [](torch::Tensor t) { return t.random_(40); });
    expect_same_draws("random_.from", x,
                      [](torch::Tensor t) { return t.random_(20, std::optional<int64_t>()); });
    expect_same_draws("geometric_", x, [](torch::Tensor t) { return t.geometric_(0.4); });
    expect_same_draws("bernoulli_", x, [](torch::Tensor t) { return t.bernoulli_(); });
  }
}

TEST(RandomOperators, NewTensorsAreTheSameOnAnyNumberOfRanks) {
  const torch::Tensor x = probabilities();
  expect_same_draws("rand_like", x, [](torch::Tensor t) { return torch::rand_like(t); });
  expect_same_draws("rand_like double", x,
                    [](torch::Tensor t) { return torch::rand_like(t, torch::kDouble); });
  expect_same_draws("randn_like", x, [](torch::Tensor t) { return torch::randn_like(t); });
  expect_same_draws("randint_like", x,
                    [](torch::Tensor t) { return torch::randint_like(t, 9, torch::kLong); });
  expect_same_draws("randint_like.low", x, [](torch::Tensor t) { return torch::randint_like(t, -9, 9); });
  expect_same_draws("bernoulli", x, [](torch::Tensor t) { return torch::bernoulli(t); });
  expect_same_draws("bernoulli.p", x, [](torch::Tensor t) { return torch::bernoulli(t, 0.7); });
  expect_same_draws("bernoulli_.Tensor", x,
                    [](torch::Tensor t) { return torch::zeros_like(t, torch::kLong).bernoulli_(t); });
  expect_same_draws("normal.Tensor_float", x, [](torch::Tensor t) { return at::normal(t, 2.0); });
  expect_same_draws("normal.float_Tensor", x, [](torch::Tensor t) { return at::normal(2.0, t); });
  expect_same_draws("normal.Tensor_Tensor", x, [](torch::Tensor t) { return at::normal(t, t.select(0, 1)); });
  expect_same_draws("native_dropout", x,
                    [](torch::Tensor t) { return std::get<0>(at::native_dropout(t, 0.4, true)); });
  expect_same_draws("native_dropout mask", x,
                    [](torch::Tensor t) { return std::get<1>(at::native_dropout(t, 0.4, true)); });
  expect_same_draws("bernoulli.out", x, [](torch::Tensor t) {
    torch::Tensor out = torch::zeros_like(t);
    return torch::bernoulli_out(out, t, std::optional<at::Generator>());
  });
}

TEST(RandomOperators, ThatNeedWholeTensorsAreTheSameOnAnyNumberOfRanks) {
  const torch::Tensor x = probabilities() + 0.01;
  expect_same_draws("multinomial", x, [](torch::Tensor t) { return torch::multinomial(t, 3); });
  expect_same_draws("multinomial with replacement", x,
                    [](torch::Tensor t) { return torch::multinomial(t, 9, true); });
  expect_same_draws("poisson", x, [](torch::Tensor t) { return torch::poisson(t * 9); });
  expect_same_draws("binomial", x,
                    [](torch::Tensor t) { return torch::binomial(torch::full_like(t, 9), t / 4); });
  expect_same_draws("gamma", x, [](torch::Tensor t) { return torch::_standard_gamma(t); });
}

TEST(RandomOperators, TwoMultinomialCallsDiffer) {
  on_ranks(2, [](int) {
    const mt::DTensor x = mt::ones({100}, line(2), {Shard(0)});
    EXPECT_FALSE(torch::equal(mt::DTensor(torch::multinomial(x, 50)).full_tensor(),
                              mt::DTensor(torch::multinomial(x, 50)).full_tensor()));
  });
}

TEST(RandomOperators, WriteViewsOfSplitDims) {
  expect_same_draws("select", numbers({7, 5}), [](torch::Tensor t) { return t.select(0, 3).normal_(); });
  expect_same_draws("slice", numbers({7, 5}), [](torch::Tensor t) { return t.slice(0, 1, 6).uniform_(); });
  expect_same_draws("column", numbers({7, 5}),
                    [](torch::Tensor t) { return t.select(1, 4).bernoulli_(0.5); });
  expect_same_draws("transpose", numbers({7, 5}), [](torch::Tensor t) { return t.t().normal_(); });
  expect_same_draws("view", numbers({8, 6}), [](torch::Tensor t) { return t.view({2, 24}).normal_(); });
}

TEST(RandomOperators, InitialiseModulesOfLibTorch) {
  expect_same_draws("kaiming_uniform_", numbers({7, 5}),
                    [](torch::Tensor t) { return torch::nn::init::kaiming_uniform_(t); });
  expect_same_draws("xavier_normal_", numbers({7, 5}),
                    [](torch::Tensor t) { return torch::nn::init::xavier_normal_(t); });
}

struct Moments {
  double mean;
  double variance;
};

// The moments of 100,000 numbers that `op` puts into a tensor of double.
Moments moments_of(const Operator& op) {
  const torch::Tensor x =
      mt::DTensor(op(mt::zeros({500, 200}, line(3), {Shard(1)}, torch::kDouble))).full_tensor();
  return {x.mean().item<double>(), x.var().item<double>()};
}

TEST(RandomOperators, HaveTheRightMoments) {
  on_ranks(3, [](int) {
    mt::manual_seed(1);
    const auto expect = [](const std::string& name, double mean, double variance, const Operator& op) {
      const Moments actual = moments_of(op);
      EXPECT_NEAR(actual.mean, mean, 0.02 * (1 + std::abs(mean))) << name;
      EXPECT_NEAR(actual.variance, variance, 0.05 * (1 + variance)) << name;
    };
    expect("uniform", 1, 4.0 / 3, [](torch::Tensor t) { return t.uniform_(-1, 3); });
    expect("normal", 1, 4, [](torch::Tensor t) { return t.normal_(1, 2); });
    expect("float normal", 0, 1,
           [](torch::Tensor t) { return torch::randn_like(t, torch::kFloat).to(torch::kDouble); });
    expect("exponential", 0.5, 0.25, [](torch::Tensor t) { return t.exponential_(2); });
    expect("geometric", 4, 12, [](torch::Tensor t) { return t.geometric_(0.25); });
    expect("log_normal", std::exp(0.125), (std::exp(0.25) - 1) * std::exp(0.25),
           [](torch::Tensor t) { return t.log_normal_(0, 0.5); });
    expect("bernoulli", 0.3, 0.21, [](torch::Tensor t) { return t.bernoulli_(0.3); });
    expect("random", 4.5, 8.25, [](torch::Tensor t) { return t.random_(10); });
    expect("multinomial", 0.75, 0.1875, [](torch::Tensor) {
      return torch::multinomial(mt::distribute_tensor(torch::tensor({0.25, 0.75}), line(3), {Shard(0)}),
                                100000, true)
          .to(torch::kDouble);
    });
  });
}

TEST(RandomOperators, StayInTheirRange) {
  on_ranks(2, [](int) {
    for (const auto type : {torch::kFloat, torch::kDouble, torch::kBFloat16, torch::kHalf}) {
      const torch::Tensor x = mt::rand({300, 300}, line(2), {Shard(0)}, type).full_tensor();
      EXPECT_TRUE((x >= 0).all().item<bool>() && (x < 1).all().item<bool>()) << type;
      const torch::Tensor wide =
          mt::DTensor(mt::zeros({300, 300}, line(2), {Shard(0)}, type).uniform_(1000, 1016)).full_tensor();
      EXPECT_TRUE((wide >= 1000).all().item<bool>() && (wide < 1016).all().item<bool>()) << type;
    }
    const torch::Tensor bits =
        mt::DTensor(mt::zeros({4000}, line(2), {Shard(0)}, torch::kByte).random_()).full_tensor();
    EXPECT_EQ(bits.min().item<int>(), 0);
    EXPECT_EQ(bits.max().item<int>(), 255);
    const torch::Tensor below =
        mt::DTensor(mt::zeros({400}, line(2), {Shard(0)}, torch::kLong)
                        .random_(std::numeric_limits<int64_t>::min(), std::optional<int64_t>()))
            .full_tensor();
    EXPECT_TRUE((below < 0).any().item<bool>() && (below > 0).any().item<bool>());
    const torch::Tensor upwards =
        mt::DTensor(mt::zeros({400}, line(2), {Shard(0)}, torch::kLong).random_()).full_tensor();
    EXPECT_TRUE((upwards >= 0).all().item<bool>());
  });
}

TEST(RandomOperators, DrawFromAGeneratorThatIsPassed) {
  on_ranks(2, [](int) {
    at::Generator one = at::detail::createCPUGenerator(5);
    at::Generator other = at::detail::createCPUGenerator(5);
    const auto drawn = [](int dim, const at::Generator& generator) {
      return mt::DTensor(mt::zeros({3, 4}, line(2), {Shard(dim)}).normal_(0, 1, generator)).full_tensor();
    };
    const std::uint64_t calls = mt::get_rng_state().call;
    const torch::Tensor first = drawn(0, one);
    EXPECT_TRUE(torch::equal(first, drawn(1, other)));
    EXPECT_FALSE(torch::equal(first, drawn(0, one)));
    EXPECT_EQ(mt::get_rng_state().call, calls);
  });
}

TEST(RandomOperators, RefuseWhatTheyCannotDraw) {
  on_ranks(2, [](int) {
    const torch::Tensor x = mt::zeros({4}, line(2), {Shard(0)});
    const auto expect = [](const char* words, const std::function<void()>& call) {
      const std::string error = error_of(call);
      EXPECT_NE(error.find(words), std::string::npos) << error;
      EXPECT_NE(error.find("do: "), std::string::npos) << error;
    };
    expect("cannot draw with std = -1", [&] { x.normal_(0, -1); });
    expect("cannot draw with from = 2", [&] { x.uniform_(2, 1); });
    expect("cannot draw with p = 1.5", [&] { x.bernoulli_(1.5); });
    expect("cannot draw with p = 1", [&] { x.geometric_(1); });
    expect("cannot draw with lambd = 0", [&] { x.exponential_(0); });
    expect("cannot draw with sigma = 0", [&] { x.cauchy_(0, 0); });
    expect("cannot draw with std = 0", [&] { x.log_normal_(0, 0); });
    expect("there is no integer from 3 to below 2", [&] { x.random_(3, 2); });
    expect("draws real numbers, not numbers of type Long", [&] { x.to(torch::kLong).normal_(); });
  });
}

}  // namespace
}  // namespace meshtorch::testing
