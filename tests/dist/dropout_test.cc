// Dropout on distributed tensors: one mask for the global tensor, the same on any number of ranks, forward
// and backward.
#include "one_rank.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;
using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

using Drop = std::function<torch::Tensor(torch::Tensor)>;

struct Dropped {
  torch::Tensor output;
  torch::Tensor gradient;
};

Dropped run(const torch::Tensor& whole, const mt::DeviceMesh& mesh, const Placements& placements,
            const Drop& drop) {
  mt::manual_seed(9);
  mt::DTensor x = mt::distribute_tensor(whole, mesh, placements);
  x.requires_grad_();
  const mt::DTensor y = drop(x);
  y.sum().backward();
  return {y.full_tensor().detach(), mt::DTensor(x.grad()).full_tensor()};
}

void expect_same_drops(const std::string& name, const torch::Tensor& whole, const Drop& drop) {
  for (const int n : {1, 2, 3, 4}) {
    on_ranks(n, [&](int) {
      const Dropped expected = run(whole, alone(), {Replicate()}, drop);
      for (const Placements& placements :
           std::vector<Placements>{{Replicate()}, {Shard(0)}, {Shard(1)}, {Partial()}}) {
        const Dropped actual = run(whole, line(n), placements, drop);
        EXPECT_TRUE(is_equal(actual.output, expected.output))
            << name << " on " << n << " ranks, " << mt::to_string(placements);
        EXPECT_TRUE(is_equal(actual.gradient, expected.gradient))
            << name << " on " << n << " ranks, " << mt::to_string(placements);
      }
    });
  }
}

TEST(Dropout, DropsTheSameElementsOnAnyNumberOfRanks) {
  const torch::Tensor ones = torch::ones({7, 5});
  expect_same_drops("dropout", ones,
                    [](torch::Tensor t) { return F::dropout(t, F::DropoutFuncOptions().p(0.5)); });
  expect_same_drops("native_dropout", ones,
                    [](torch::Tensor t) { return std::get<0>(torch::native_dropout(t, 0.5, true)); });
  expect_same_drops("module", ones, [](torch::Tensor t) { return torch::nn::Dropout(0.25)(t); });
  expect_same_drops("in place", ones, [](torch::Tensor t) {
    return F::dropout(t * 2, F::DropoutFuncOptions().p(0.5).inplace(true));
  });
  expect_same_drops("rrelu", numbers({7, 5}),
                    [](torch::Tensor t) { return torch::rrelu(t, 0.25, 0.5, true); });
}

TEST(Dropout, OfSeluKeepsItsFormula) {
  expect_same_drops("alpha_dropout", torch::zeros({7, 5}),
                    [](torch::Tensor t) { return torch::alpha_dropout(t, 0.5, true); });
  expect_same_drops("feature_alpha_dropout", torch::zeros({7, 5, 2}),
                    [](torch::Tensor t) { return torch::feature_alpha_dropout(t, 0.5, true); });
}

TEST(Dropout, OfFeaturesDropsTheSameChannelsOnAnyNumberOfRanks) {
  const torch::Tensor ones = torch::ones({6, 5, 2, 3});
  expect_same_drops("dropout2d", ones,
                    [](torch::Tensor t) { return F::dropout2d(t, F::Dropout2dFuncOptions().p(0.5)); });
  expect_same_drops("feature_dropout_", ones, [](torch::Tensor t) {
    torch::Tensor twice = t * 2;
    return torch::feature_dropout_(twice, 0.5, true);
  });
  on_ranks(2, [&](int) {
    const torch::Tensor y = run(ones, line(2), {Shard(2)}, [](torch::Tensor t) {
                              return torch::feature_dropout(t, 0.5, true);
                            }).output;
    EXPECT_TRUE(is_equal(y, y.slice(2, 0, 1).slice(3, 0, 1).expand_as(y).contiguous()));
    const double kept = (y != 0).to(torch::kDouble).mean().item<double>();
    EXPECT_GT(kept, 0.1);
    EXPECT_LT(kept, 0.9);
    EXPECT_TRUE(is_equal(
        run(ones, line(2), {Shard(0)}, [](torch::Tensor t) { return torch::feature_dropout(t, 0.5, false); })
            .output,
        ones));
  });
}

TEST(Dropout, MasksOfShardsDifferAndTheGradientUsesTheSameMask) {
  on_ranks(2, [](int) {
    const Dropped dropped = run(torch::ones({400, 2}), line(2), {Shard(0)},
                                [](torch::Tensor t) { return torch::dropout(t, 0.5, true); });
    EXPECT_FALSE(torch::equal(dropped.output.narrow(0, 0, 200), dropped.output.narrow(0, 200, 200)));
    EXPECT_TRUE(is_equal(dropped.gradient, dropped.output));
    EXPECT_NEAR(dropped.output.mean().item<double>(), 1, 0.15);
    EXPECT_TRUE(((dropped.output == 0) | (dropped.output == 2)).all().item<bool>());
  });
}

TEST(Dropout, WithoutTrainingDoesNothingAndTakesNoCall) {
  on_ranks(2, [](int) {
    const mt::DTensor x = mt::distribute_tensor(numbers({6, 2}), line(2), {Shard(0)});
    const mt::RngState before = mt::get_rng_state();
    EXPECT_TRUE(is_equal(mt::DTensor(torch::dropout(x, 0.5, false)).full_tensor(), numbers({6, 2})));
    EXPECT_TRUE(is_equal(mt::DTensor(std::get<0>(torch::native_dropout(x, 0.5, false))).full_tensor(),
                         numbers({6, 2})));
    EXPECT_EQ(mt::get_rng_state(), before);
  });
}

TEST(Dropout, WorksUnderInferenceMode) {
  on_ranks(2, [](int) {
    const c10::InferenceMode inference;
    const mt::DTensor x = mt::distribute_tensor(torch::ones({40, 2}), line(2), {Shard(0)});
    const torch::Tensor y = mt::DTensor(torch::dropout(x, 0.5, true)).full_tensor();
    EXPECT_TRUE(((y == 0) | (y == 2)).all().item<bool>());
  });
}

// A call inside backward takes the next number too, on the rank's own count.
TEST(Dropout, InsideBackwardDrawsFromTheRankOfTheForward) {
  on_ranks(2, [](int) {
    mt::manual_seed(4);
    mt::DTensor x = mt::distribute_tensor(torch::ones({6}), line(2), {Shard(0)});
    x.requires_grad_();
    const torch::Tensor y = x * 2;
    y.register_hook([](torch::Tensor gradient) { return torch::dropout(gradient, 0.5, true); });
    y.sum().backward();
    EXPECT_EQ(mt::get_rng_state(), (mt::RngState{.seed = 4, .call = 1}));
  });
}

}  // namespace
}  // namespace meshtorch::testing
