// Tensor-parallel styles on 4 ranks: shapes and numbers of collectives, forward and backward.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Collective;
using mt::ColwiseParallel;
using mt::DTensor;
using mt::Replicate;
using mt::RowwiseParallel;
using mt::SequenceParallel;
using mt::Shard;

constexpr int kRanks = 4;
using Sizes = std::vector<int64_t>;

template <class Holder>
Holder numbered(Holder module) {
  const torch::NoGradGuard no_grad;
  int64_t seed = 1;
  for (torch::Tensor& p : module->parameters()) p.copy_(numbers(p.sizes(), torch::kFloat, seed++));
  return module;
}

#define EXPECT_COMM(mode, total, kind, count)                    \
  EXPECT_EQ((mode).get_total_counts(), total) << (mode).table(); \
  EXPECT_EQ((mode).get_comm_counts()[Collective::kind], count)

TEST(ColwiseParallel, LinearNeedsOneAllReduceBackward) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(16, 16));
    const torch::Tensor x = numbers({8, 16}).requires_grad_();
    const torch::Tensor expected = model(x).detach().chunk(kRanks, 1)[rank];
    mt::parallelize_module(*model, line(kRanks), ColwiseParallel());
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_close(out, expected));
    EXPECT_EQ(comm.get_total_counts(), 0);
    out.sum().backward();
    EXPECT_COMM(comm, 1, all_reduce, 1);
    EXPECT_EQ(x.grad().sizes(), x.sizes());
  });
}

TEST(ColwiseParallel, SplitInputIsGatheredAndItsGradientReduceScattered) {
  on_ranks(kRanks, [](int) {
    auto model = numbered(mt::nn::Linear(16, 16));
    const torch::Tensor x = numbers({8, 16}).requires_grad_();
    mt::parallelize_module(*model, line(kRanks), ColwiseParallel({.input_layouts = Shard(0)}));
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_EQ(out.sizes(), (Sizes{8 * kRanks, 16 / kRanks}));
    EXPECT_COMM(comm, 1, all_gather_into_tensor, 1);
    out.sum().backward();
    EXPECT_COMM(comm, 2, reduce_scatter_tensor, 1);
  });
}

TEST(ColwiseParallel, EmbeddingNeedsNoCommunication) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Embedding(16, 16));
    const torch::Tensor x = torch::arange(8).reshape({4, 2});
    const torch::Tensor expected = model(x).detach().chunk(kRanks, 2)[rank];
    mt::parallelize_module(*model, line(kRanks), ColwiseParallel());
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_equal(out, expected));
    out.sum().backward();
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  });
}

TEST(RowwiseParallel, LinearNeedsOneAllReduceForward) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(16, 16));
    const torch::Tensor whole = numbers({8, 16});
    const torch::Tensor expected = model(whole).detach();
    const torch::Tensor x = whole.chunk(kRanks, 1)[rank].clone().requires_grad_();
    mt::parallelize_module(*model, line(kRanks), RowwiseParallel());
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_close(out, expected, 1e-5));
    EXPECT_COMM(comm, 1, all_reduce, 1);
    out.sum().backward();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
  });
}

TEST(RowwiseParallel, SplitOutputIsReduceScatteredAndItsGradientGathered) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(16, 16));
    const torch::Tensor whole = numbers({8, 16});
    const torch::Tensor expected = model(whole).detach().chunk(kRanks, 0)[rank];
    const torch::Tensor x = whole.chunk(kRanks, 1)[rank].clone().requires_grad_();
    mt::parallelize_module(*model, line(kRanks), RowwiseParallel({.output_layouts = Shard(0)}));
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_close(out, expected, 1e-5));
    EXPECT_COMM(comm, 1, reduce_scatter_tensor, 1);
    out.sum().backward();
    EXPECT_COMM(comm, 2, all_gather_into_tensor, 1);
  });
}

TEST(RowwiseParallel, ThreeDimsNeedOneAllReduceToo) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(16, 6));
    const torch::Tensor whole = numbers({2, 3, 16});
    const torch::Tensor expected = model(whole).detach();
    mt::parallelize_module(*model, line(kRanks), RowwiseParallel());
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(whole.chunk(kRanks, 2)[rank].clone());
    EXPECT_TRUE(is_close(out, expected, 1e-5));
    EXPECT_COMM(comm, 1, all_reduce, 1);
    out.sum().backward();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
  });
}

TEST(RowwiseParallel, UnequalShardsAreKnownFromTheWeight) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(10, 6));  // shards of 3, 3, 3 and 1
    const torch::Tensor whole = numbers({5, 10});
    const torch::Tensor expected = model(whole).detach();
    mt::parallelize_module(*model, line(kRanks), RowwiseParallel());
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(whole.chunk(kRanks, 1)[rank].clone());
    EXPECT_TRUE(is_close(out, expected, 1e-5));
    EXPECT_COMM(comm, 1, all_reduce, 1);
  });
}

TEST(RowwiseParallel, EmbeddingNeedsOneAllReduceForward) {
  on_ranks(kRanks, [](int) {
    auto model = numbered(mt::nn::Embedding(16, 16));
    const torch::Tensor x = torch::arange(8).reshape({4, 2});
    const torch::Tensor expected = model(x).detach();
    mt::parallelize_module(*model, line(kRanks), RowwiseParallel({.input_layouts = Replicate()}));
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_equal(out, expected));
    EXPECT_COMM(comm, 1, all_reduce, 1);
    out.sum().backward();
    EXPECT_EQ(comm.get_total_counts(), 1) << comm.table();
  });
}

TEST(RowwiseParallel, EmbeddingWithSplitOutputIsReduceScattered) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Embedding(16, 16));
    const torch::Tensor x = torch::arange(8);
    const torch::Tensor expected = model(x).detach().chunk(kRanks, 1)[rank];
    mt::parallelize_module(*model, line(kRanks),
                           RowwiseParallel({.input_layouts = Replicate(), .output_layouts = Shard(1)}));
    const mt::CommDebugMode comm;
    const torch::Tensor out = model(x);
    EXPECT_TRUE(is_equal(out, expected));
    EXPECT_COMM(comm, 1, reduce_scatter_tensor, 1);
    out.sum().backward();
    EXPECT_COMM(comm, 2, all_gather_into_tensor, 1);
  });
}

TEST(ConvolutionParallel, ChannelsAreSplitByColumnsAndByRows) {
  on_ranks(kRanks, [](int) {
    torch::nn::Sequential plain(numbered(torch::nn::Conv2d(3, 8, 3)), numbered(torch::nn::Conv2d(8, 5, 3)));
    auto first = numbered(mt::nn::Conv2d(3, 8, 3));
    auto second = numbered(mt::nn::Conv2d(8, 5, 3));
    const torch::Tensor x = numbers({2, 3, 7, 7});
    mt::parallelize_module(*first, line(kRanks), ColwiseParallel());
    mt::parallelize_module(*second, line(kRanks), RowwiseParallel());
    EXPECT_TRUE(is_close(second(first(x)), plain->forward(x), 1e-4));
  });
}

template <class Norm>
void expect_sequence_parallel(Norm norm) {
  const int64_t batch = 2, sequence = 16, width = 10;
  const torch::Tensor whole = numbers({batch, kRanks * sequence, width});
  const torch::Tensor expected = norm(whole).detach();
  const mt::DeviceMesh mesh = line(kRanks);
  mt::parallelize_module(*norm, mesh, SequenceParallel());
  mt::CommDebugMode comm;
  // A plain tensor is taken as split along the sequence.
  const torch::Tensor shard = whole.chunk(kRanks, 1)[static_cast<size_t>(mesh.get_local_rank())];
  const DTensor out = norm(shard);
  EXPECT_EQ(out.placements(), mt::Placements{Shard(1)});
  EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  EXPECT_TRUE(is_close(out.full_tensor(), expected, 1e-5));
  // A distributed one is brought there.
  comm.restart();
  const DTensor split = DTensor::from_local(whole.chunk(kRanks, 0)[0].clone(), mesh, {Replicate()});
  EXPECT_EQ(DTensor(norm(split)).placements(), mt::Placements{Shard(1)});
  EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
  comm.restart();
  out.sum().backward();
  for (const torch::Tensor& p : norm->parameters()) EXPECT_TRUE(mt::is_dtensor(p.grad()));
  EXPECT_EQ(comm.get_comm_counts()[Collective::all_reduce], comm.get_total_counts()) << comm.table();
}

TEST(SequenceParallel, LayerNorm) {
  on_ranks(kRanks,
           [](int) { expect_sequence_parallel(mt::nn::LayerNorm(torch::nn::LayerNormOptions({10}))); });
}
TEST(SequenceParallel, RMSNorm) {
  on_ranks(kRanks, [](int) { expect_sequence_parallel(mt::nn::RMSNorm(10)); });
}
TEST(SequenceParallel, Dropout) {
  on_ranks(kRanks, [](int) {
    mt::nn::Dropout dropout(0.5);
    mt::parallelize_module(*dropout, line(kRanks), SequenceParallel());
    mt::CommDebugMode comm;
    const DTensor out = dropout(torch::ones({2, 3, 8}));
    EXPECT_EQ(comm.get_total_counts(), 0) << comm.table();
    EXPECT_EQ(out.placements(), mt::Placements{Shard(1)});
    EXPECT_EQ(out.sizes(), (Sizes{2, 3 * kRanks, 8}));
    const torch::Tensor whole = out.full_tensor();
    EXPECT_TRUE(torch::all(whole.eq(0).logical_or(whole.eq(2))).item<bool>());
  });
}

TEST(NoParallel, RunsWholeBetweenParallelModules) {
  on_ranks(kRanks, [](int rank) {
    auto model = numbered(mt::nn::Linear(6, 6));
    const torch::Tensor x = numbers({kRanks, 6});
    const torch::Tensor expected = model(x).detach();
    mt::parallelize_module(*model, line(kRanks), mt::NoParallel({.input_layout = Shard(0)}));
    EXPECT_TRUE(is_close(model(x.chunk(kRanks, 0)[rank].clone()), expected, 1e-5));
  });
}

TEST(ParallelStyle, PlainModulesNeedDistributedInputsAndKeepTheirEdges) {
  on_ranks(kRanks, [](int) {
    auto model = numbered(torch::nn::Linear(16, 16));
    const torch::Tensor x = numbers({8, 16});
    const torch::Tensor expected = model(x).detach();
    const std::string error =
        error_of([&] { mt::parallelize_module(*model, line(kRanks), ColwiseParallel()); });
    EXPECT_NE(error.find("write meshtorch::nn::Linear for torch::nn::Linear"), std::string::npos) << error;
    mt::parallelize_module(*model, line(kRanks), ColwiseParallel({.use_local_output = false}));
    const DTensor out = model(mt::distribute_tensor(x, line(kRanks), {Replicate()}));
    EXPECT_EQ(out.placements(), mt::Placements{Shard(1)});
    EXPECT_TRUE(is_close(out.full_tensor(), expected, 1e-5));
  });
}

TEST(ParallelStyle, RefusesModulesThatCannotBeSplit) {
  on_ranks(2, [](int) {
    mt::nn::LayerNorm norm(torch::nn::LayerNormOptions({4}));
    EXPECT_NE(error_of([&] {
                mt::parallelize_module(*norm, line(2), ColwiseParallel());
              }).find("ColwiseParallel currently only support nn.Linear and nn.Embedding!"),
              std::string::npos);
    EXPECT_THROW(mt::parallelize_module(*norm, line(2), RowwiseParallel()), c10::NotImplementedError);
  });
}

}  // namespace
}  // namespace meshtorch::testing
