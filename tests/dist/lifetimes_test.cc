// What outlives the world, the group or the mesh that it was made with.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

// A gather that was begun and never taken, as after an exception between a prefetch and its use.
TEST(Lifetimes, AModuleWithAnUnfinishedGatherMayOutliveItsWorld) {
  std::array<mt::nn::Linear, 2> kept{nullptr, nullptr};
  on_ranks(2, [&](int rank) {
    mt::nn::Linear layer(8, 8);
    mt::FSDPModule sharded = mt::fully_shard(*layer, line(2));
    sharded.start_unshard();
    kept[static_cast<std::size_t>(rank)] = layer;
  });
  for (mt::nn::Linear& layer : kept) layer = nullptr;
}

// Nothing but backward knows the mesh of a group any more.
TEST(Lifetimes, BackwardKeepsTheMeshOfAGroupAlive) {
  on_ranks(2, [](int) {
    const torch::Tensor leaf = numbers({2, 3}).requires_grad_();
    torch::Tensor result;
    {
      const mt::DeviceMesh other = mt::DeviceMesh::from_group(mt::Group(), torch::kCPU, {"other"});
      const DTensor x = DTensor::from_local(leaf, other, {Shard(0)});
      result = x.redistribute(line(2), {Replicate()});
    }
    (result * 2).sum().backward();
    EXPECT_EQ(leaf.grad().sizes(), leaf.sizes());
  });
}

}  // namespace
}  // namespace meshtorch::testing
