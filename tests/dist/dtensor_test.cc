// Distributed tensors: making them, taking them apart, and operators on them.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Replicate;
using mt::Shard;

TEST(DTensor, IsAPlainTensorOfTheGlobalShape) {
  on_ranks(2, [](int rank) {
    const torch::Tensor whole = numbers({5, 3});
    const mt::DTensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    const torch::Tensor t = x;
    EXPECT_EQ(t.sizes(), whole.sizes());
    EXPECT_EQ(t.strides(), whole.strides());
    EXPECT_TRUE(mt::is_dtensor(t));
    EXPECT_FALSE(mt::is_dtensor(whole));
    EXPECT_TRUE(is_equal(x.to_local(), whole.chunk(2)[rank]));
    EXPECT_TRUE(is_equal(x.full_tensor(), whole));
  });
}

TEST(DTensor, OperatorsGiveTheGlobalResult) {
  on_ranks(2, [](int) {
    const torch::Tensor a = numbers({5, 4});
    const torch::Tensor b = numbers({4, 6});
    const mt::DTensor x = mt::distribute_tensor(a, line(2), {Shard(1)});
    const mt::DTensor w = mt::distribute_tensor(b, line(2), {Shard(0)});
    const mt::DTensor y = torch::mm(x, w);
    EXPECT_EQ(y.placements(), mt::Placements{Partial()});
    EXPECT_TRUE(is_close(y.full_tensor(), torch::mm(a, b)));
    const mt::DTensor z = torch::relu(y) + 1;
    EXPECT_TRUE(is_close(z.full_tensor(), torch::relu(torch::mm(a, b)) + 1));
    EXPECT_NEAR(z.sum().item<double>(), (torch::relu(torch::mm(a, b)) + 1).sum().item<double>(), 1e-4);
  });
}

TEST(DTensor, LinearTrainsAsOnOneDevice) {
  on_ranks(2, [](int) {
    torch::nn::Linear plain(6, 5);
    torch::nn::Linear split(6, 5);
    for (auto& layer : {plain, split}) {
      layer->weight.set_data(numbers({5, 6}));
      layer->bias.set_data(numbers({5}));
    }
    const mt::DeviceMesh mesh = line(2);
    split->weight.set_data(mt::distribute_tensor(split->weight.detach(), mesh, {Shard(0)}));
    split->bias.set_data(mt::distribute_tensor(split->bias.detach(), mesh, {Shard(0)}));
    const torch::Tensor batch = numbers({4, 6});
    const mt::DTensor input = mt::distribute_tensor(batch, mesh, {Replicate()});
    torch::optim::SGD plain_sgd(plain->parameters(), 0.1);
    torch::optim::SGD split_sgd(split->parameters(), 0.1);
    for (int step = 0; step < 5; ++step) {
      plain_sgd.zero_grad();
      split_sgd.zero_grad();
      const torch::Tensor plain_loss = plain(batch).square().mean();
      const torch::Tensor split_loss = split(input).square().mean();
      plain_loss.backward();
      split_loss.backward();
      EXPECT_NEAR(plain_loss.item<double>(), split_loss.item<double>(), 1e-5);
      EXPECT_TRUE(mt::is_dtensor(split->weight.grad()));
      plain_sgd.step();
      split_sgd.step();
    }
    EXPECT_TRUE(is_close(mt::DTensor(split->weight).full_tensor(), plain->weight, 1e-5));
    EXPECT_TRUE(is_close(mt::DTensor(split->bias).full_tensor(), plain->bias, 1e-5));
  });
}

TEST(DTensor, AssigningToARowOfASplitDimReachesTheTensor) {
  on_ranks(2, [](int) {
    torch::Tensor whole = numbers({5, 3});
    torch::Tensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    x[3].fill_(9);
    x.select(1, 1).mul_(2);
    whole[3].fill_(9);
    whole.select(1, 1).mul_(2);
    EXPECT_TRUE(is_equal(mt::DTensor(x).full_tensor(), whole));
  });
}

TEST(CommDebug, MmOfTwoRowSplitTensorsIsOneAllGather) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1});
    const torch::Tensor x = torch::randn({4, 8}, torch::requires_grad());
    const torch::Tensor y = torch::randn({4, 32}, torch::requires_grad());
    const mt::DTensor x_split = mt::DTensor::from_local(x, mesh, {Shard(0)});
    const mt::DTensor y_split = mt::DTensor::from_local(y, mesh, {Shard(0)});
    const mt::CommDebugMode comm;
    torch::mm(x_split, y_split);
    EXPECT_EQ(comm.get_total_counts(), 1);
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_reduce], 0);
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::all_gather_into_tensor], 1);
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::reduce_scatter_tensor], 0);
  });
}

}  // namespace
}  // namespace meshtorch::testing
