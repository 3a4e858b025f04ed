// Tensor parallelism without styles: parameters are split, and what operators choose sends what Megatron's
// scheme does.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;
using mt::Collective;
using mt::DTensor;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;

constexpr std::int64_t kWidth = 8;

// x + down(relu(up(norm(x)))), for each layer its parameters: of the norm, of the way up and of that down.
struct Layer {
  Tensor scale, shift, up, up_bias, down, down_bias;

  std::vector<Tensor> parameters() const { return {scale, shift, up, up_bias, down, down_bias}; }
  Tensor operator()(const Tensor& x) const {
    const Tensor normed = torch::layer_norm(x, {kWidth}, scale, shift);
    return x + F::linear(torch::relu(F::linear(normed, up, up_bias)), down, down_bias);
  }
};

Layer plain_layer(int64_t seed) {
  const auto made = [&](at::IntArrayRef sizes) {
    return (numbers(sizes, torch::kDouble, seed++) / 4).requires_grad_();
  };
  return {made({kWidth}), made({kWidth}), made({24, kWidth}), made({24}), made({kWidth, 24}), made({kWidth})};
}

Layer split_layer(const Layer& plain, const mt::DeviceMesh& mesh) {
  const auto placed = [&](const Tensor& t, const mt::Placement& placement) {
    return Tensor(mt::distribute_tensor(t.detach(), mesh, {placement})).requires_grad_();
  };
  return {placed(plain.scale, Replicate()), placed(plain.shift, Replicate()),
          placed(plain.up, Shard(0)),       placed(plain.up_bias, Shard(0)),
          placed(plain.down, Shard(1)),     placed(plain.down_bias, Replicate())};
}

// Forward, what the rows of a layer gave in parts is added up; backward, what its columns did: gradients of
// parameters are where the parameters are.
TEST(TensorParallelByPlacements, EachLayerAddsUpOnceForwardAndOnceBackward) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh = line(3);
    const std::vector<Layer> plain{plain_layer(1), plain_layer(7)};
    const std::vector<Layer> split{split_layer(plain[0], mesh), split_layer(plain[1], mesh)};
    const Tensor x = numbers({2, 5, kWidth}, torch::kDouble, 3);
    const Tensor loss = plain[1](plain[0](x)).square().sum();
    loss.backward();

    const Tensor x_whole = mt::distribute_tensor(x, mesh, {Replicate()});
    const mt::CommDebugMode comm;
    const Tensor y = split[1](split[0](x_whole));
    const Tensor split_loss = y.square().sum();
    EXPECT_EQ(comm.get_total_counts(), 2) << comm.table();
    split_loss.backward();
    EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], 4) << comm.table();
    EXPECT_EQ(comm.get_total_counts(), 4) << comm.table();
    for (std::size_t layer = 0; layer < plain.size(); ++layer) {
      for (std::size_t i = 0; i < plain[layer].parameters().size(); ++i) {
        const Tensor parameter = split[layer].parameters()[i];
        EXPECT_EQ(DTensor(parameter.grad()).placements(), DTensor(parameter).placements()) << layer << i;
        EXPECT_TRUE(
            is_close(DTensor(parameter.grad()).full_tensor(), plain[layer].parameters()[i].grad(), 1e-10))
            << layer << i;
      }
    }
    EXPECT_TRUE(is_close(DTensor(split_loss).full_tensor().detach(), loss.detach(), 1e-10));
  });
}

}  // namespace
}  // namespace meshtorch::testing
