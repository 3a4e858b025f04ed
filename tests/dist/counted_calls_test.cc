// Calls in which a layout survives, one line each: what is sent, and how the result lies.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

namespace F = torch::nn::functional;
using mt::DTensor;
using mt::Partial;
using mt::Placements;
using mt::ReduceOp;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;
using torch::indexing::Slice;

struct CountedCall {
  const char* name;
  std::vector<int64_t> sizes;
  mt::Placement given;
  // Of the tensor, and of a function that gives others the tensor's mesh.
  std::function<Tensor(const Tensor& x, const std::function<Tensor(Tensor, mt::Placement)>& place)> call;
  mt::Placement result;
  int64_t collectives = 0;
};

Tensor indices(std::vector<int64_t> of) { return torch::tensor(of); }

std::vector<CountedCall> counted_calls() {
  const auto weight = [](int64_t out, int64_t in) { return numbers({out, in}, torch::kDouble, 5); };
  return {
      // A split dim that is flattened with the one before it, and comes back.
      {"linear",
       {8, 16, 12},
       Shard(1),
       [=](const Tensor& x, auto& place) { return torch::linear(x, place(weight(3, 12), Replicate())); },
       Shard(1)},
      {"linear of few rows",
       {2, 16, 12},
       Shard(1),
       [=](const Tensor& x, auto& place) { return torch::linear(x, place(weight(3, 12), Replicate())); },
       Shard(1)},
      {"matmul",
       {4, 6, 8},
       Shard(1),
       [=](const Tensor& x, auto& place) { return torch::matmul(x, place(weight(8, 5), Replicate())); },
       Shard(1)},
      {"einsum",
       {4, 6, 8},
       Shard(1),
       [=](const Tensor& x, auto& place) {
         return torch::einsum("abc,cd->abd", {x, place(weight(8, 5), Replicate())});
       },
       Shard(1)},
      {"flatten, tanh, unflatten",
       {4, 6, 8},
       Shard(1),
       [](const Tensor& x, auto&) { return x.flatten(0, 1).tanh().unflatten(0, {4, 6}); },
       Shard(1)},
      {"layer_norm",
       {4, 6, 8},
       Shard(1),
       [](const Tensor& x, auto&) { return torch::layer_norm(x, {8}); },
       Shard(1)},
      // Writes to places of a split dim: each rank to those it holds.
      {"scatter",
       {8, 6},
       Shard(0),
       [](const Tensor& x, auto& place) {
         const Tensor rows = indices({7, 0, 3}).view({3, 1}).expand({3, 6}).contiguous();
         return x.scatter(0, place(rows, Replicate()),
                          place(numbers({3, 6}, torch::kDouble, 3), Replicate()));
       },
       Shard(0)},
      {"scatter_add_",
       {8, 6},
       Shard(0),
       [](const Tensor& x, auto& place) {
         const Tensor rows = indices({7, 0, 7}).view({3, 1}).expand({3, 6}).contiguous();
         return x.clone().scatter_add_(0, place(rows, Replicate()),
                                       place(numbers({3, 6}, torch::kDouble, 3), Replicate()));
       },
       Shard(0)},
      {"index_add",
       {5, 8},
       Shard(1),
       [](const Tensor& x, auto& place) {
         return x.index_add(1, place(indices({1, 6, 1}), Replicate()),
                            place(numbers({5, 3}, torch::kDouble, 3), Replicate()));
       },
       Shard(1)},
      {"index_copy",
       {8, 6},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return x.index_copy(0, place(indices({1, 6}), Replicate()),
                             place(numbers({2, 6}, torch::kDouble, 3), Replicate()));
       },
       Shard(0)},
      // Pending sums.
      {"division by one number",
       {4, 6},
       Partial(),
       [](const Tensor& x, auto&) { return x / torch::tensor(4.0, torch::kDouble); },
       Partial()},
      {"division by a number that all ranks have",
       {4, 6},
       Partial(),
       [](const Tensor& x, auto& place) {
         return x / place(torch::tensor(4.0, torch::kDouble), Replicate());
       },
       Partial()},
      {"division by zero that all ranks have",  // terms would be infinities that do not add up
       {4, 6},
       Partial(),
       [](const Tensor& x, auto& place) {
         return x / place(torch::tensor(0.0, torch::kDouble), Replicate());
       },
       Replicate(),
       1},
      {"pad of a sum",
       {4, 6},
       Partial(),
       [](const Tensor& x, auto&) { return F::pad(x, F::PadFuncOptions({1, 2})); },
       Partial()},
      {"pad beside the split",
       {4, 6},
       Shard(0),
       [](const Tensor& x, auto&) { return F::pad(x, F::PadFuncOptions({1, 2})); },
       Shard(0)},
      {"zeros like another shape",
       {4, 6},
       Shard(0),
       [](const Tensor& x, auto&) { return x.new_zeros({5, 3}); },
       Replicate()},
      {"ones like another shape",
       {4, 6},
       Partial(),
       [](const Tensor& x, auto&) { return x.new_ones({5, 3}); },
       Replicate()},
      {"a number like another shape",
       {4, 6},
       Shard(1),
       [](const Tensor& x, auto&) { return x.new_full({5, 3}, 7); },
       Replicate()},
      // Pending maxima.
      {"squeeze of a maximum",
       {4, 1, 6},
       Partial(ReduceOp::max),
       [](const Tensor& x, auto&) { return x.squeeze(1); },
       Partial(ReduceOp::max)},
      {"cast of a maximum",
       {4, 6},
       Partial(ReduceOp::max),
       [](const Tensor& x, auto&) { return x.to(torch::kFloat); },
       Partial(ReduceOp::max)},
      {"maximum of maxima",
       {4, 6},
       Partial(ReduceOp::max),
       [](const Tensor& x, auto& place) {
         return torch::maximum(x, place(numbers({4, 6}, torch::kDouble, 9), Partial(ReduceOp::max)));
       },
       Partial(ReduceOp::max)},
      // Places along the split dim: by mask, the result is a sum.
      {"index_select",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return x.index_select(0, place(indices({5, 0, 0, 3}), Replicate()));
       },
       Partial()},
      {"gather",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return x.gather(0, place(indices({5, 0, 2, 3}).view({1, 4}), Replicate()));
       },
       Partial()},
      {"take_along_dim",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return torch::take_along_dim(x, place(indices({5, 0, 2, 3}).view({1, 4}), Replicate()), 0);
       },
       Partial()},
      {"embedding",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return torch::embedding(x, place(indices({5, 0, 2, 3}), Replicate()));
       },
       Partial()},
      // Others.
      {"any", {6, 4}, Shard(0), [](const Tensor& x, auto&) { return x.any(0); }, Partial(ReduceOp::max)},
      {"all", {6, 4}, Shard(0), [](const Tensor& x, auto&) { return x.all(0); }, Partial(ReduceOp::min)},
      {"bucketize",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return torch::bucketize(x, place(torch::arange(4, torch::kDouble), Replicate()));
       },
       Shard(0)},
      {"clamp between tensors",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto& place) {
         return x.clamp(place(-torch::ones({4}, torch::kDouble), Replicate()),
                        place(torch::ones({6, 4}, torch::kDouble), Shard(0)));
       },
       Shard(0)},
      {"fft beside the split",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto&) { return torch::fft_fft(x).abs(); },
       Shard(0)},
      {"a slice beside the split",
       {6, 4},
       Shard(0),
       [](const Tensor& x, auto&) { return x.index({Slice(), Slice(1, 3)}); },
       Shard(0)},
  };
}

TEST(CountedCalls, SendWhatTheyMustAndNoMore) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    // Sends nothing.
    const auto place = [&](const Tensor& t, mt::Placement p) -> Tensor {
      if (p == Partial(ReduceOp::max)) return DTensor::from_local(t, mesh, {p});
      return mt::distribute_tensor(t, mesh, {p}, {.src_data_rank = std::nullopt});
    };
    const auto leave = [](const Tensor& t, mt::Placement) { return t; };
    for (const CountedCall& one : counted_calls()) {
      SCOPED_TRACE(one.name);
      const Tensor x = numbers(one.sizes, torch::kDouble, 3);
      const mt::CommDebugMode comm;
      const Tensor y = one.call(place(x, one.given), place);
      EXPECT_EQ(comm.get_total_counts(), one.collectives) << comm.table();
      EXPECT_EQ(DTensor(y).placements(), Placements{one.result});
      EXPECT_TRUE(is_close(DTensor(y).full_tensor(), one.call(x, leave), 1e-10));
    }
  });
}

TEST(CountedCalls, ASumOfAveragesIsOneReduction) {
  on_ranks(4, [](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2, 2}, {"a", "b"});
    const DTensor x =
        DTensor::from_local(numbers({3, 2}, torch::kDouble, rank), mesh, {Partial(), Partial(ReduceOp::avg)});
    const mt::CommDebugMode comm;
    const Tensor y = x.redistribute({Replicate(), Replicate()}).to_local();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    Tensor expected = torch::zeros({3, 2}, torch::kDouble);
    for (int r = 0; r < 4; ++r) expected += numbers({3, 2}, torch::kDouble, r) / 2;
    EXPECT_TRUE(is_close(y, expected, 1e-12));
  });
}

TEST(CountedCalls, TheGradientOfASumThatStaysPendingIsSentNowhere) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const Tensor x =
        DTensor::from_local(numbers({3, 2}, torch::kDouble), mesh, {Partial()}).detach().requires_grad_();
    const mt::CommDebugMode comm;
    const DTensor y = DTensor(x).redistribute({Partial()});
    y.backward(mt::ones({3, 2}, mesh, {Replicate()}, torch::kDouble));
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_TRUE(is_equal(DTensor(x.grad()).full_tensor(), torch::ones({3, 2}, torch::kDouble)));
  });
}

TEST(CountedCalls, ATensorIsScatteredToItsParts) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh = line(3);
    const Tensor of_rank_0 = numbers({7, 2}, torch::kDouble);
    const mt::CommDebugMode comm;
    const DTensor split =
        mt::distribute_tensor(rank == 0 ? of_rank_0 : torch::zeros_like(of_rank_0), mesh, {Shard(0)});
    EXPECT_EQ(comm.get_comm_counts()[mt::Collective::scatter], 1) << comm.table();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
    EXPECT_TRUE(is_equal(split.full_tensor(), of_rank_0));
  });
}

}  // namespace
}  // namespace meshtorch::testing
