// Activations stay split where that costs little more, and always inside a keep_layout scope.
#include "meshtorch/keep_layout.h"
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::DTensor;
using mt::Placements;
using mt::Shard;

// ZeRO by placements: every parameter and the batch are split along dim 0.
struct Zero {
  explicit Zero(int ranks, int64_t batch, int64_t width)
      : mesh(line(ranks)),
        x(mt::distribute_tensor(numbers({batch, width}), mesh, {Shard(0)})),
        up(parameter({width, width}, 1)),
        up_bias(parameter({width}, 2)),
        down(parameter({width, width}, 3)),
        down_bias(parameter({width}, 4)) {}

  torch::Tensor parameter(at::IntArrayRef shape, int64_t seed) const {
    return mt::distribute_tensor(numbers(shape, torch::kFloat, seed) / 8, mesh, {Shard(0)}).requires_grad_();
  }
  torch::Tensor hidden() const { return torch::relu(torch::addmm(up_bias, x, up.t())); }
  torch::Tensor output(const torch::Tensor& h) const { return torch::addmm(down_bias, h, down.t()); }

  mt::DeviceMesh mesh;
  torch::Tensor x, up, up_bias, down, down_bias;
};

TEST(KeepLayout, ALargeBatchStaysSplitBesideSplitParameters) {
  on_ranks(4, [](int) {
    const Zero zero(4, 512, 48);
    const mt::CommDebugMode comm;
    const torch::Tensor h = zero.hidden();
    EXPECT_EQ(DTensor(h).placements(), Placements{Shard(0)});
    const torch::Tensor y = zero.output(h);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_gather_into_tensor], 4)
        << comm.table();  // the parameters
    EXPECT_EQ(comm.get_total_counts(), 4) << comm.table();
  });
}

TEST(KeepLayout, ASmallBatchIsGatheredUnlessItIsKept) {
  on_ranks(4, [](int) {
    const Zero zero(4, 8, 1024);
    EXPECT_EQ(DTensor(zero.hidden()).placements(), Placements{Shard(1)});
    const mt::keep_layout keep;
    const torch::Tensor h = zero.hidden();
    EXPECT_EQ(DTensor(h).placements(), Placements{Shard(0)});
    const torch::Tensor y = zero.output(h);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
    y.square().sum().backward();
    for (const torch::Tensor& p : {zero.up, zero.down, zero.up_bias, zero.down_bias})
      EXPECT_TRUE(DTensor(p.grad()).placements()[0].is_partial()) << DTensor(p.grad()).spec().to_string();
  });
}

TEST(KeepLayout, ValuesAreThoseOfThePlainRun) {
  on_ranks(4, [](int) {
    const Zero zero(4, 10, 12);  // uneven
    const auto whole = [](const torch::Tensor& t) { return DTensor(t).full_tensor().detach(); };
    const torch::Tensor h = torch::relu(torch::addmm(whole(zero.up_bias), whole(zero.x), whole(zero.up).t()));
    const torch::Tensor expected = torch::addmm(whole(zero.down_bias), h, whole(zero.down).t());
    const mt::keep_layout keep;
    EXPECT_TRUE(torch::allclose(whole(zero.output(zero.hidden())), expected));
  });
}

}  // namespace
}  // namespace meshtorch::testing
