// Batch normalization of a split batch: the numbers of the whole, and only statistics are sent.
#include "transformer_block.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

struct Norm {
  torch::Tensor y, x_grad, weight_grad, bias_grad, mean, variance;
};

// Forward and backward in float64; `place` puts the tensors of the call where they are to lie.
template <class Place>
Norm run_norm(const torch::Tensor& whole, const torch::Tensor& gradient, bool training, const Place& place) {
  const int64_t channels = whole.size(1);
  const auto each = [&](double scale, double offset) {
    return numbers({channels}, torch::kDouble, 5) * scale + offset;
  };
  torch::Tensor x = place(whole, "x").requires_grad_();
  torch::Tensor weight = place(each(0.5, 1), "channels").requires_grad_();
  torch::Tensor bias = place(each(0.25, 0), "channels").requires_grad_();
  Norm norm;
  norm.mean = place(each(0.1, 0), "channels");
  norm.variance = place(each(0.1, 1), "channels");
  norm.y = torch::batch_norm(x, weight, bias, norm.mean, norm.variance, training, 0.3, 1e-5, false);
  norm.y.backward(place(gradient, "gradient"));
  norm.x_grad = x.grad();
  norm.weight_grad = weight.grad();
  norm.bias_grad = bias.grad();
  return norm;
}

void expect_same(const Norm& split, const Norm& plain) {
  const auto same = [](const char* what, const torch::Tensor& a, const torch::Tensor& b) {
    const torch::Tensor whole = DTensor(a).full_tensor();
    EXPECT_TRUE(torch::allclose(whole, b, 1e-10, 1e-12))
        << what << ": off by " << (whole - b).abs().max().item<double>();
    EXPECT_EQ(a.strides(), b.strides()) << what;
  };
  same("y", split.y, plain.y);
  same("gradient of x", split.x_grad, plain.x_grad);
  same("gradient of the weight", split.weight_grad, plain.weight_grad);
  same("gradient of the bias", split.bias_grad, plain.bias_grad);
  same("running mean", split.mean, plain.mean);
  same("running variance", split.variance, plain.variance);
}

void compare(const mt::DeviceMesh& mesh, const std::vector<int64_t>& shape, const Placements& x,
             const Placements& gradient, const Placements& channels, bool training = true) {
  const torch::Tensor whole = numbers(shape, torch::kDouble) * 3 + 100;  // a mean far from 0
  const torch::Tensor g = numbers(shape, torch::kDouble, 7);
  const auto plain = [](const torch::Tensor& t, std::string_view) { return t.clone(); };
  const auto split = [&](const torch::Tensor& t, std::string_view what) -> torch::Tensor {
    return mt::distribute_tensor(t, mesh, what == "x" ? x : what == "gradient" ? gradient : channels);
  };
  SCOPED_TRACE(c10::str(c10::IntArrayRef(shape), " ", mt::to_string(x), " ", mt::to_string(gradient)));
  expect_same(run_norm(whole, g, training, split), run_norm(whole, g, training, plain));
}

TEST(BatchNorm, OfASplitBatchIsThatOfTheWhole) {
  on_ranks(4, [](int) {
    const Placements whole{Replicate()};
    for (const std::vector<int64_t>& shape :
         {std::vector<int64_t>{8, 6}, {5, 3, 2}, {2, 3, 4, 5}, {3, 5, 2, 2, 2}}) {
      compare(line(4), shape, {Shard(0)}, {Shard(0)}, whole);
      compare(line(4), shape, {Shard(0)}, {Replicate()}, whole);
      compare(line(4), shape, {Shard(0)}, {Partial()}, {Shard(0)});
      compare(line(4), shape, {Shard(1)}, {Shard(0)}, {Shard(0)});
      compare(line(4), shape, {Replicate()}, {Shard(0)}, whole);
      compare(line(4), shape, {Partial()}, {Shard(1)}, whole);
      compare(line(4), shape, {Shard(0)}, {Shard(0)}, whole, /*training=*/false);
    }
    compare(line(4), {2, 3, 9, 2}, {Shard(2)}, {Shard(3)}, whole);
    const mt::DeviceMesh square = mt::init_device_mesh(torch::kCPU, {2, 2}, {"dp", "tp"});
    const Placements both{Replicate(), Replicate()};
    compare(square, {6, 3, 4}, {Shard(0), Shard(0)}, {Shard(0), Partial()}, both);
    compare(square, {6, 3, 4}, {Shard(0), Shard(1)}, {Shard(0), Shard(1)}, {Replicate(), Shard(0)});
    compare(square, {5, 3, 4}, {Shard(2), Shard(0)}, {Replicate(), Replicate()}, both);
    compare(square, {6, 3, 4}, {Partial(), Shard(0)}, {Partial(), Replicate()}, both);
    compare(square, {6, 5, 4}, {Shard(1), Shard(1)}, {Shard(1), Shard(1)}, {Shard(0), Shard(0)});
  });
}

TEST(BatchNorm, OfASplitBatchSendsStatisticsOnly) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    torch::nn::BatchNorm2d norm(torch::nn::BatchNorm2dOptions(16));
    mt::distribute_module(*norm, mesh);
    const torch::Tensor x = mt::distribute_tensor(numbers({32, 16, 8, 8}), mesh, {Shard(0)}).requires_grad_();
    const mt::CommDebugMode forward;
    const torch::Tensor y = norm(x);
    EXPECT_EQ(forward.get_comm_counts()[Collective::all_gather_into_tensor], 1) << forward.table();
    EXPECT_EQ(forward.get_total_counts(), 1) << forward.table();
    // To each of three others, three numbers for each of 16 channels.
    EXPECT_EQ(forward.get_comm_counts().statistics().at(Collective::all_gather_into_tensor).bytes_sent,
              3 * 3 * 16 * 4);
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
    const mt::CommDebugMode backward;
    y.square().sum().backward();
    EXPECT_EQ(backward.get_comm_counts()[Collective::all_reduce], 1) << backward.table();
    EXPECT_EQ(backward.get_total_counts(), 1) << backward.table();
    EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(0)});
    EXPECT_EQ(DTensor(norm->weight.grad()).placements(), Placements{Replicate()});
  });
}

TEST(BatchNorm, OfSplitChannelsSendsNothing) {
  on_ranks(4, [](int) {
    const mt::DeviceMesh mesh = line(4);
    const torch::Tensor x = mt::distribute_tensor(numbers({4, 10, 3}), mesh, {Shard(1)}).requires_grad_();
    const torch::Tensor weight = mt::ones({10}, mesh, {Shard(0)}).requires_grad_();
    const torch::Tensor mean = mt::zeros({10}, mesh, {Shard(0)});
    const torch::Tensor variance = mt::ones({10}, mesh, {Shard(0)});
    const mt::CommDebugMode comm;
    const torch::Tensor y = torch::batch_norm(x, weight, {}, mean, variance, true, 0.1, 1e-5, false);
    y.backward(mt::ones({4, 10, 3}, mesh, {Shard(1)}));
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(1)});
    EXPECT_EQ(DTensor(x.grad()).placements(), Placements{Shard(1)});
  });
}

TEST(BatchNorm, OfNarrowTypesAndWithoutParameters) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({6, 3, 4}).to(torch::kBFloat16);
    const torch::Tensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    const torch::Tensor y = torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    const torch::Tensor expected = torch::batch_norm(whole, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    EXPECT_EQ(y.scalar_type(), torch::kBFloat16);
    EXPECT_TRUE(
        torch::allclose(DTensor(y).full_tensor().to(torch::kFloat), expected.to(torch::kFloat), 1e-2, 1e-2));
  });
}

TEST(BatchNorm, RanksOutsideTheMeshTakeNoPart) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 1});
    const torch::Tensor x = mt::distribute_tensor(numbers({4, 3}), mesh, {Shard(0)}).requires_grad_();
    const torch::Tensor y = torch::batch_norm(x, {}, {}, {}, {}, true, 0.1, 1e-5, false);
    y.sum().backward();
    EXPECT_EQ(DTensor(y).placements(), Placements{Shard(0)});
  });
}

}  // namespace
}  // namespace meshtorch::testing
