// Where a distributed tensor is needed and a plain one comes, every rank gets the error that says so.
#include <thread>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

// What every such error says.
void expect_told(const std::string& error, const std::string& where) {
  for (const std::string& part :
       {std::string("a plain tensor was taken for a distributed one"), "in: " + where,
        std::string("do: make it one with distribute_tensor or DTensor::from_local")}) {
    EXPECT_NE(error.find(part), std::string::npos) << error;
  }
}

class PlainGradient : public ::testing::TestWithParam<std::pair<Placements, Placements>> {};

TEST_P(PlainGradient, OfRedistributeIsAnError) {
  on_ranks(3, [](int) {
    const auto& [from, to] = GetParam();
    const DTensor x = mt::distribute_tensor(numbers({5, 3}), line(3), {Replicate()}).redistribute(from);
    const torch::Tensor y = DTensor(x.detach().requires_grad_()).redistribute(to);
    expect_told(error_of([&] { y.backward(torch::ones({5, 3})); }), "redistribute");
  });
}
INSTANTIATE_TEST_SUITE_P(Layouts, PlainGradient,
                         ::testing::Values(std::pair(Placements{Shard(0)}, Placements{Replicate()}),
                                           std::pair(Placements{Replicate()}, Placements{Shard(1)}),
                                           std::pair(Placements{Partial()}, Placements{Replicate()}),
                                           std::pair(Placements{Shard(0)}, Placements{Shard(0)})));

TEST(PlainTensor, AsTheGradientOfFromLocalIsAnError) {
  on_ranks(2, [](int) {
    const torch::Tensor x = torch::ones({2, 3}).requires_grad_();
    for (const mt::Placement& lies : {mt::Placement(Shard(0)), mt::Placement(Replicate())}) {
      const torch::Tensor y = DTensor::from_local(x, line(2), {lies});
      expect_told(error_of([&] { y.backward(torch::ones(y.sizes())); }), "redistribute");
    }
  });
}

TEST(PlainTensor, AsTheGradientOfADistributedParameterIsAnErrorOfReduceGradients) {
  on_ranks(2, [](int) {
    for (const mt::Placement& lies : {mt::Placement(Shard(0)), mt::Placement(Replicate())}) {
      const torch::Tensor p = mt::distribute_tensor(torch::ones({4, 3}), line(2), {lies}).requires_grad_();
      p.mutable_grad() = torch::ones({4, 3});
      expect_told(error_of([&] { mt::reduce_gradients({p}); }), "reduce_gradients");
    }
  });
}

TEST(PlainTensor, IsNoDTensor) {
  on_ranks(1, [](int) {
    expect_told(error_of([] { DTensor(torch::ones({2})); }), "DTensor(tensor)");
    expect_told(error_of([] { DTensor(torch::Tensor()); }), "DTensor(tensor)");
  });
}

// LibTorch asks its thread how views are differentiated that are written in place. What distributed tensors
// need is not for plain ones: gradients of views whose base gets another shape would land elsewhere.
torch::Tensor gradient_through_a_reshaped_base() {
  const torch::Tensor leaf = numbers({4, 4}).requires_grad_();
  torch::Tensor base = leaf * 1;
  torch::Tensor row = base[0];
  base.t_();
  row.mul_(numbers({4}));
  (base * numbers({4, 4})).sum().backward();
  return leaf.grad();
}

TEST(PlainTensor, ViewsAreDifferentiatedAsWithoutDistributedOnes) {
  torch::Tensor expected;
  std::thread([&] { expected = gradient_through_a_reshaped_base(); }).join();
  on_ranks(2, [&](int) {
    const torch::Tensor x = mt::distribute_tensor(numbers({4, 3}), line(2), {Shard(0)}).requires_grad_();
    const torch::Tensor y = x * 2;
    y[1].mul_(3);
    EXPECT_TRUE(torch::equal(gradient_through_a_reshaped_base(), expected));
    y.sum().backward();
    EXPECT_TRUE(torch::equal(gradient_through_a_reshaped_base(), expected));
    EXPECT_TRUE(torch::equal(mt::full_tensor(x.grad())[1], torch::full({3}, 6.)));
  });
}

}  // namespace
}  // namespace meshtorch::testing
