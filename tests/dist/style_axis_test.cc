// Parallel styles on tensors of a mesh with several axes: they act on their own axis only.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::DTensor;
using mt::Replicate;
using mt::Shard;

// A linear layer split by columns along `tp`, its parameters replicated along the other axis.
mt::nn::Linear split_layer(const mt::DeviceMesh& mesh, const mt::DeviceMesh& tp) {
  mt::nn::Linear layer(6, 8);
  const torch::NoGradGuard no_grad;
  layer->weight.copy_(numbers({8, 6}));
  layer->bias.copy_(numbers({8}));
  mt::parallelize_module(*layer, tp,
                         mt::ColwiseParallel({.output_layouts = Replicate(), .use_local_output = false}));
  for (const torch::Tensor& p : layer->parameters()) {
    const DTensor split(p.detach());
    mt::replace_data(p, DTensor::from_local(split.to_local(), mesh, {Replicate(), split.placements()[0]},
                                            {.shape = split.sizes().vec(), .stride = split.strides().vec()}));
  }
  return layer;
}

TEST(StyleAxis, TheOtherAxesStayAsTheyAre) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    mt::nn::Linear layer = split_layer(mesh, mesh["tp"]);
    const torch::Tensor input = numbers({4, 6}, torch::kFloat, 3);
    // The rows are split over both axes; the style gathers them over its own.
    const torch::Tensor result = layer(mt::distribute_tensor(input, mesh, {Shard(0), Shard(0)}));
    EXPECT_EQ(DTensor(result).placements(), (mt::Placements{Shard(0), Replicate()}));
    EXPECT_TRUE(is_close(DTensor(result.detach()).full_tensor(),
                         torch::linear(input, numbers({8, 6}), numbers({8})), 1e-5));
  });
}

TEST(StyleAxis, AMeshWithoutNamesIsAnError) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {1, 2});
    const mt::DeviceMesh tp(torch::kCPU, std::vector<int64_t>{0, 1});
    mt::nn::Linear layer = split_layer(mesh, tp);
    const DTensor input = mt::distribute_tensor(numbers({4, 6}), mesh, {Shard(0), Shard(1)});
    EXPECT_EQ(error_of([&] { layer(input); }),
              "meshtorch: a parallel style cannot tell along which axis it runs\n  mesh of the tensor: " +
                  mesh.to_string() + "\n  mesh of the style: " + tp.to_string() +
                  "\n  do: give the axes names, as in init_device_mesh(device, {2, 2}, {\"dp\", \"tp\"})");
  });
}

}  // namespace
}  // namespace meshtorch::testing
