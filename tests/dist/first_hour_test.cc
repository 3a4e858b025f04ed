// What a first program needs: one entrance for threads and processes, functions of torch::Tensors, parameters
// split in place, LibTorch's containers.
#include <sstream>

#include "numbers.h"
#include "ranks.h"

namespace meshtorch::testing {
namespace {

TEST(Run, GivesEachRankItsNumber) {
  if (ranks_are_processes()) GTEST_SKIP() << "the launcher's processes are one world already";
  std::array<std::atomic<int>, 3> calls{};
  mt::run(3, [&](int rank) {
    EXPECT_EQ(rank, mt::get_rank());
    EXPECT_EQ(mt::get_world_size(), 3);
    ++calls[static_cast<std::size_t>(rank)];
  });
  for (const auto& count : calls) EXPECT_EQ(count, 1);
}

TEST(Run, RefusesANegativeNumber) {
  EXPECT_THROW(mt::run(-1, [](int) {}), c10::ValueError);
}

TEST(FreeFunctions, DoWhatTheMembersDo) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    const torch::Tensor whole = numbers({5, 4}, torch::kDouble, 1);
    const torch::Tensor x = torch::relu(mt::distribute_tensor(whole, mesh, {mt::Shard(0)}));
    EXPECT_EQ(mt::placements(x), mt::Placements{mt::Shard(0)});
    EXPECT_EQ(mt::device_mesh(x), mesh);
    EXPECT_TRUE(torch::equal(mt::to_local(x), mt::DTensor(x).to_local()));
    EXPECT_TRUE(torch::equal(mt::full_tensor(x), torch::relu(whole)));
    EXPECT_TRUE(torch::equal(mt::redistribute(x, {mt::Shard(1)}).full_tensor(), torch::relu(whole)));
    EXPECT_THROW(mt::full_tensor(whole), c10::ValueError);
  });
}

TEST(DistributeParameter, KeepsTheLeafAndItsGradient) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    torch::nn::Linear linear(4, 3);
    {
      const torch::NoGradGuard no_grad;
      linear->weight.copy_(numbers({3, 4}, torch::kFloat, 1));
      linear->bias.zero_();
    }
    const torch::Tensor x = numbers({2, 4}, torch::kFloat, 2);
    linear(x).sum().backward();
    const torch::Tensor weight = linear->weight.detach().clone();
    const torch::Tensor gradient = linear->weight.grad().clone();
    for (torch::Tensor* p : {&linear->weight, &linear->bias})
      mt::distribute_parameter(*p, mesh, {mt::Shard(0)});
    EXPECT_TRUE(linear->parameters()[0].is_leaf());
    EXPECT_TRUE(linear->parameters()[0].requires_grad());
    EXPECT_TRUE(torch::equal(mt::full_tensor(linear->parameters()[0]), weight));
    EXPECT_TRUE(torch::equal(mt::full_tensor(linear->weight.grad()), gradient));
    linear(mt::distribute_tensor(x, mesh, {mt::Replicate()})).sum().backward();
    EXPECT_TRUE(torch::allclose(mt::full_tensor(linear->weight.grad()), 2 * gradient));
  });
}

TEST(Containers, ASequentialTakesADTensor) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    torch::nn::Sequential model(mt::nn::Linear(4, 3), torch::nn::ReLU());
    mt::distribute_module(*model, mesh);
    const mt::DTensor x = mt::distribute_tensor(numbers({5, 4}, torch::kFloat, 1), mesh, {mt::Shard(0)});
    const torch::Tensor y = model->forward(x);
    EXPECT_EQ(mt::placements(y), mt::Placements{mt::Shard(0)});
    EXPECT_EQ(y.sizes(), (std::vector<int64_t>{5, 3}));
  });
}

struct NamedByUserImpl : torch::nn::Module {
  torch::Tensor forward(const torch::Tensor& x) { return x; }
};
MESHTORCH_MODULE(NamedByUser);

TEST(HookedModules, PrintAsTheUserNamedThem) {
  std::ostringstream own, linear, plain;
  own << *NamedByUser();
  linear << *mt::nn::Linear(4, 3);
  plain << *torch::nn::Linear(4, 3);
  EXPECT_EQ(own.str(), "meshtorch::testing::(anonymous namespace)::NamedByUserImpl");
  EXPECT_EQ(linear.str(), plain.str());
}

}  // namespace
}  // namespace meshtorch::testing
