// Pending gradients become whole, once, in as few collectives as there are groups of ranks to sum over.
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

// A parameter with a gradient that lies as given; each rank's terms add up to `whole`.
torch::Tensor parameter(const torch::Tensor& whole, const mt::DeviceMesh& mesh, const Placements& lies,
                        const Placements& gradient) {
  torch::Tensor p = mt::distribute_tensor(whole, mesh, lies).requires_grad_();
  p.mutable_grad() = mt::distribute_tensor(whole, mesh, lies).redistribute(gradient).detach();
  return p;
}

TEST(ReduceGradients, SumsOverTheSameAxesInOneCollective) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const std::vector<torch::Tensor> whole{numbers({5, 3}), numbers({3}, torch::kFloat, 1),
                                           numbers({}, torch::kFloat, 2), numbers({2, 2}, torch::kDouble, 3)};
    const std::vector<torch::Tensor> parameters{
        parameter(whole[0], mesh, {Replicate(), Shard(0)}, {Partial(), Shard(0)}),
        parameter(whole[1], mesh, {Replicate(), Shard(0)}, {Partial(), Shard(0)}),
        parameter(whole[2], mesh, {Replicate(), Replicate()}, {Partial(), Partial()}),
        parameter(whole[3], mesh, {Replicate(), Replicate()}, {Partial(), Partial()})};
    const mt::CommDebugMode comm;
    mt::reduce_gradients(parameters);
    EXPECT_EQ(comm.get_total_counts(), 3) << comm.table();  // dp; dp and tp in float; the same in double
    for (std::size_t i = 0; i < parameters.size(); ++i) {
      const DTensor gradient(parameters[i].grad());
      EXPECT_EQ(gradient.placements(), DTensor(parameters[i]).placements());
      EXPECT_TRUE(is_equal(gradient.full_tensor(), whole[i]));
    }
  });
}

TEST(ReduceGradients, ScattersToASplitParameter) {
  on_ranks(3, [](int) {
    const torch::Tensor whole = numbers({5, 3});
    const torch::Tensor p = parameter(whole, line(3), {Shard(0)}, {Partial()});
    const mt::CommDebugMode comm;
    mt::reduce_gradients({p, torch::ones({2}).requires_grad_()});
    EXPECT_EQ(comm.get_comm_counts()[Collective::reduce_scatter_tensor], 1) << comm.table();
    EXPECT_EQ(DTensor(p.grad()).placements(), Placements{Shard(0)});
    EXPECT_TRUE(is_equal(DTensor(p.grad()).full_tensor(), whole));
  });
}

TEST(ReduceGradients, SendsNoMoreOfAWholeGradientThanTheRankKeeps) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const torch::Tensor whole = numbers({6, 4});
    const torch::Tensor p = parameter(whole, mesh, {Replicate(), Shard(0)}, {Partial(), Replicate()});
    const mt::CommDebugMode comm;
    mt::reduce_gradients({p});
    const int64_t shard_bytes = 3 * 4 * static_cast<int64_t>(sizeof(float));
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    // A ring of two sends the tensor once.
    EXPECT_EQ(comm.get_comm_counts().statistics().at(Collective::all_reduce_coalesced).bytes_sent,
              shard_bytes);
    EXPECT_EQ(DTensor(p.grad()).placements(), DTensor(p).placements());
    EXPECT_TRUE(is_equal(DTensor(p.grad()).full_tensor(), whole));
  });
}

TEST(ReduceGradients, LeavesOtherReductionsTheirOrder) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    torch::Tensor p = mt::zeros({3}, mesh, {Replicate(), Replicate()}).requires_grad_();
    p.mutable_grad() = DTensor::from_local(torch::full({3}, 1.0F + static_cast<float>(rank)), mesh,
                                           {Partial("max"), Partial()});
    const torch::Tensor expected = DTensor(p.grad()).full_tensor();
    mt::reduce_gradients({p});
    EXPECT_TRUE(is_equal(DTensor(p.grad()).full_tensor(), expected));
  });
}

TEST(ReduceGradients, IsNotNeededTwiceAndOptimisersThenSendNothing) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    torch::Tensor w = mt::ones({4, 3}, mesh, {Replicate()}).requires_grad_();
    const torch::Tensor x = mt::distribute_tensor(numbers({6, 4}), mesh, {Shard(0)});
    torch::optim::AdamW adam({w}, torch::optim::AdamWOptions(1e-2));
    torch::mm(x, w).square().sum().backward();
    mt::reduce_gradients({w});
    const mt::CommDebugMode comm;
    mt::reduce_gradients({w});
    adam.step();
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  });
}

TEST(ReduceGradients, RanksOutsideTheMeshTakeNoPart) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1});
    torch::Tensor p = mt::zeros({3}, mesh, {Replicate()}).requires_grad_();
    p.mutable_grad() =
        DTensor::from_local(torch::ones({3}), mesh, {Partial()}, {.shape = std::vector<int64_t>{3}});
    mt::reduce_gradients({p});
    EXPECT_EQ(DTensor(p.grad()).placements(), Placements{Replicate()});
    if (mesh.get_coordinate()) {
      EXPECT_TRUE(is_equal(DTensor(p.grad()).to_local(), torch::full({3}, 2.0F)));
    }
  });
}

}  // namespace
}  // namespace meshtorch::testing
