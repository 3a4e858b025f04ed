// What is called Replicate is compared where that is asked for.
#include <meshtorch/check_replicas.h>

#include <cstdlib>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

// Ranks do not compare replicas by themselves.
class CheckReplicas : public ::testing::Test {
 protected:
  void SetUp() override { setenv("MESHTORCH_AGREEMENT", "calls", 1); }
  void TearDown() override { unsetenv("MESHTORCH_AGREEMENT"); }
};

TEST_F(CheckReplicas, NamesTheRanksThatHoldSomethingElse) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {4}, {"dp"});
    const torch::Tensor mine = torch::full({2, 3}, rank == 2 ? 1.5 : 1.0);
    const DTensor tensor = DTensor::from_local(mine, mesh, {Replicate()});
    EXPECT_EQ(
        error_of([&] { mt::check_replicas(tensor, "the weight"); }),
        "meshtorch: the weight, Float[2, 3] under [R], is not equal on the ranks along dp\n  equal among "
        "themselves: ranks [0, 1, 3]\n  equal among themselves: ranks [2]\n  do: give equal data to all "
        "ranks "
        "(one seed, one file, broadcast), or call it Partial or Shard if that is what it is");
    mt::check_replicas(DTensor::from_local(torch::ones({2}), mesh, {Replicate()}));
    mt::check_replicas(DTensor::from_local(mine, mesh, {Shard(0)}));
    mt::check_replicas(mine);
  });
}

TEST_F(CheckReplicas, LooksAlongTheReplicatedAxesOnly) {
  on_ranks(4, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const auto tensor_of = [&](double value) {
      return DTensor::from_local(torch::full({3}, value), mesh, {Replicate(), Shard(0)});
    };
    mt::check_replicas(tensor_of(rank % 2));
    const DTensor differs = tensor_of(rank == 3 ? 7 : rank % 2);
    if (rank % 2 == 0)
      mt::check_replicas(differs);
    else
      EXPECT_THROW(mt::check_replicas(differs), c10::ValueError);
  });
}

TEST_F(CheckReplicas, AScopeFindsWhereRanksCameApart) {
  on_ranks(2, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2});
    const DTensor equal = DTensor::from_local(torch::ones({4}), mesh, {Replicate()});
    const DTensor apart = DTensor::from_local(torch::full({4}, rank), mesh, {Replicate()});
    apart.redistribute(mesh, {Shard(0)});
    const mt::CheckReplicas scope;
    equal.redistribute(mesh, {Shard(0)});
    EXPECT_THROW(apart.redistribute(mesh, {Shard(0)}), c10::ValueError);
  });
}

TEST_F(CheckReplicas, OfAModuleNamesTheParameter) {
  on_ranks(2, [](int rank) {
    const auto mesh = mt::init_device_mesh(torch::kCPU, {2});
    torch::nn::Linear layer(3, 2);
    mt::distribute_module(*layer, mesh);
    mt::check_replicas(*layer);
    if (rank == 1) {
      const torch::NoGradGuard no_grad;
      DTensor(layer->bias).to_local().add_(1);
    }
    const std::string error = error_of([&] { mt::check_replicas(*layer); });
    EXPECT_NE(error.find("meshtorch: bias, Float[2] under [R], is not equal on the ranks along 0\n"),
              std::string::npos)
        << error;
    EXPECT_EQ(error.find("weight"), std::string::npos) << error;
  });
}

}  // namespace
}  // namespace meshtorch::testing
