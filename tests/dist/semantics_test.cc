// Distributed tensors behave as plain ones: data that leaves, in-place changes, modes, mixing, optimisers.
#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placements;
using mt::Replicate;
using mt::Shard;

mt::DTensor split(const torch::Tensor& whole, const mt::Placement& p, int n) {
  return mt::distribute_tensor(whole, line(n), {p});
}
torch::Tensor full(const torch::Tensor& t) { return mt::DTensor(t).full_tensor(); }

TEST(DataThatLeaves, IsGlobal) {
  on_ranks(3, [](int) {
    const torch::Tensor whole = numbers({7, 2});
    const mt::DTensor x = split(whole, Shard(0), 3);
    EXPECT_FLOAT_EQ(x.sum().item<float>(), whole.sum().item<float>());
    EXPECT_FLOAT_EQ(x.max().item<float>(), whole.max().item<float>());
    EXPECT_FLOAT_EQ(x.mean().item<float>(), whole.mean().item<float>());
    EXPECT_FLOAT_EQ(x[6][1].item<float>(), whole[6][1].item<float>());
    EXPECT_TRUE(torch::equal(x, split(whole, Shard(1), 3)));
    EXPECT_FALSE(torch::equal(x, x + 1));
    EXPECT_TRUE(is_equal(torch::empty({7, 2}).copy_(x), whole));
    EXPECT_TRUE(torch::allclose(x, split(whole, Replicate(), 3)));
  });
}

TEST(Printing, ShowsGlobalShapePlacementsMeshAndShard) {
  on_ranks(2, [](int rank) {
    const mt::DTensor x = split(torch::arange(4), Shard(0), 2);
    std::ostringstream out;
    out << x;
    EXPECT_EQ(out.str(), rank == 0 ? "DTensor(Long[4], [S(0)] on DeviceMesh((tp=2), [0, 1], cpu)), shard of "
                                     "rank 0:\n 0\n 1\n[ CPULongType{2} ]"
                                   : "DTensor(Long[4], [S(0)] on DeviceMesh((tp=2), [0, 1], cpu)), shard of "
                                     "rank 1:\n 2\n 3\n[ CPULongType{2} ]");
  });
}

TEST(Mixing, APlainTensorMayBeReadAndWrittenByOneOperator) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({6}), ones = torch::ones({6});
    const mt::DTensor x = mt::distribute_tensor(whole, line(2), {Shard(0)});
    torch::Tensor total = torch::tensor(2.0F);
    torch::add_out(total, total, x.sum());
    EXPECT_TRUE(is_close(mt::DTensor(total).full_tensor(), whole.sum() + 2));
    const mt::implicit_replication scope;
    torch::Tensor sum = ones.clone();
    torch::add_out(sum, sum, x);
    EXPECT_TRUE(is_close(mt::DTensor(sum).full_tensor(), ones + whole));
    torch::Tensor product = ones.clone();
    product.addcmul_(product, x);
    EXPECT_TRUE(is_close(mt::DTensor(product).full_tensor(), ones + ones * whole));
  });
}

TEST(Mixing, APlainTensorIsAnErrorThatNamesTheArgumentAndTheWaysOut) {
  on_ranks(2, [](int) {
    const mt::DTensor x = split(numbers({4, 4}), Shard(0), 2);
    const torch::Tensor plain = numbers({4, 4}, torch::kFloat, 3);
    const std::string error = error_of([&] { torch::mm(x, plain); });
    EXPECT_NE(error.find("`aten::mm` got a plain tensor"), std::string::npos) << error;
    EXPECT_NE(error.find("argument mat2"), std::string::npos) << error;
    EXPECT_NE(error.find("distribute_tensor"), std::string::npos) << error;
    EXPECT_NE(error.find("implicit_replication"), std::string::npos) << error;
    const mt::implicit_replication scope;
    EXPECT_TRUE(is_close(full(torch::mm(x, plain)), torch::mm(numbers({4, 4}), plain)));
  });
}

TEST(Mixing, ScalarTensorsAndTensorsMadeInsideOperatorsAreFine) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({4, 6});
    const mt::DTensor x = split(whole, Shard(0), 2);
    EXPECT_TRUE(is_equal(full(x * torch::tensor(2.0F)), whole * 2));
    const torch::Tensor q = numbers({1, 2, 4, 6});
    const mt::DTensor heads = split(q, Shard(1), 2);
    EXPECT_TRUE(
        is_close(full(torch::scaled_dot_product_attention(heads, heads, heads, {}, 0.0, /*is_causal=*/true)),
                 torch::scaled_dot_product_attention(q, q, q, {}, 0.0, true), 1e-5));
  });
}

TEST(Meshes, TensorsOnDifferentMeshesAreAnError) {
  on_ranks(2, [](int) {
    const mt::DTensor x = split(numbers({4}), Shard(0), 2);
    const mt::DTensor y = mt::distribute_tensor(
        numbers({4}), mt::DeviceMesh(torch::kCPU, std::vector<int64_t>{1, 0}), {Shard(0)});
    EXPECT_NE(error_of([&] { x + y; }).find("different meshes"), std::string::npos);
  });
}

TEST(Meshes, PermutedRanksHoldTheirParts) {
  on_ranks(3, [](int) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{2, 0, 1});
    const torch::Tensor whole = numbers({7, 2});
    const mt::DTensor x = mt::distribute_tensor(whole, mesh, {Shard(0)});
    EXPECT_TRUE(is_equal(x.full_tensor(), whole));
    EXPECT_TRUE(is_equal(x.redistribute({Shard(1)}).full_tensor(), whole));
    EXPECT_TRUE(is_close(full(x.sum(0)), whole.sum(0)));
  });
}

TEST(Meshes, RanksOutsideTakeNoPart) {
  on_ranks(3, [](int rank) {
    const mt::DeviceMesh mesh(torch::kCPU, std::vector<int64_t>{0, 2});
    const torch::Tensor whole = numbers({5, 2});
    const mt::DTensor x = mt::distribute_tensor(whole, mesh, {Shard(0)});
    const mt::DTensor y = torch::relu(x.redistribute({Replicate()})) + 1;
    EXPECT_EQ(y.sizes(), whole.sizes());
    if (rank == 1) {
      EXPECT_EQ(x.to_local().numel(), 0);
      EXPECT_NE(error_of([&] { y.sum().item(); }).find("rank 1 is not in the tensor's mesh"),
                std::string::npos);
    } else {
      EXPECT_TRUE(is_equal(y.to_local(), torch::relu(whole) + 1));
    }
  });
}

TEST(InPlace, ShapeChangesReachTheGlobalShape) {
  on_ranks(2, [](int) {
    torch::Tensor whole = numbers({1, 4, 1, 3});
    torch::Tensor x = split(whole, Shard(1), 2);
    whole = whole.clone();
    x.squeeze_(0);
    whole.squeeze_(0);
    EXPECT_EQ(x.sizes(), whole.sizes());
    EXPECT_TRUE(is_equal(full(x), whole));
    x.transpose_(0, 2);
    whole.transpose_(0, 2);
    EXPECT_EQ(x.sizes(), whole.sizes());
    EXPECT_EQ(x.strides(), whole.strides());
    EXPECT_TRUE(is_equal(full(x), whole));
    x.unsqueeze_(0);
    EXPECT_TRUE(is_equal(full(x), whole.unsqueeze(0)));
  });
}

TEST(InPlace, AWriteThatTheLayoutDoesNotAllowIsBroughtBack) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({4, 3});
    torch::Tensor pending = mt::DTensor(split(whole, Replicate(), 2)).redistribute({Partial()});
    pending.relu_();
    EXPECT_EQ(mt::DTensor(pending).placements(), Placements{Partial()});
    EXPECT_TRUE(is_equal(full(pending), whole.relu()));
    torch::Tensor rows = split(whole, Shard(0), 2);
    rows.cumsum_(0);
    EXPECT_TRUE(is_close(full(rows), whole.cumsum(0)));
  });
}

TEST(InPlace, SlicesOfSplitDimsCanBeAssigned) {
  on_ranks(3, [](int) {
    using torch::indexing::Slice;
    torch::Tensor whole = numbers({7, 4}).clone();
    torch::Tensor x = split(whole, Shard(0), 3);
    x.index({Slice(1, 5)}).zero_();
    whole.index({Slice(1, 5)}).zero_();
    x.index({Slice(), Slice(2, 3)}).add_(1);
    whole.index({Slice(), Slice(2, 3)}).add_(1);
    x.narrow(0, 2, 3).select(1, 0).fill_(5);
    whole.narrow(0, 2, 3).select(1, 0).fill_(5);
    x.t().narrow(1, 1, 6).fill_diagonal_(7);
    whole.t().narrow(1, 1, 6).fill_diagonal_(7);
    EXPECT_TRUE(is_equal(full(x), whole));
  });
}

// Conjugates and negatives that LibTorch has only noted in the tensor.
TEST(Views, OfConjugatesAndNegativesAreDistributedAndFilledAsTheyAre) {
  on_ranks(3, [](int) {
    const torch::Tensor z = torch::complex(numbers({5, 2}), numbers({5, 2}, torch::kFloat, 1));
    for (const torch::Tensor& lazy : {z.conj(), torch::_neg_view(numbers({5, 2}))}) {
      const mt::DTensor x = mt::distribute_tensor(lazy, line(3), {Shard(0)});
      EXPECT_TRUE(is_equal(x.full_tensor(), lazy.resolve_conj().resolve_neg()));
      EXPECT_TRUE(is_equal(full(x.conj() * 2), (lazy.conj() * 2).resolve_conj()));
    }
    mt::manual_seed(3);
    torch::Tensor drawn =
        mt::DTensor::from_local(torch::_neg_view(torch::zeros({2, 2})), line(3), {Replicate()});
    drawn.uniform_();
    mt::manual_seed(3);
    EXPECT_TRUE(is_equal(full(drawn), full(mt::rand({2, 2}, line(3), {Replicate()}))));
  });
}

TEST(Out, TakesTheResultInTheLayoutOfTheTarget) {
  on_ranks(2, [](int) {
    const torch::Tensor a = numbers({4, 3});
    const torch::Tensor b = numbers({4, 3}, torch::kFloat, 2);
    torch::Tensor out = mt::empty({4, 3}, line(2), {Replicate()});
    torch::add_out(out, split(a, Shard(0), 2), split(b, Shard(0), 2));
    EXPECT_EQ(mt::DTensor(out).placements(), Placements{Replicate()});
    EXPECT_TRUE(is_equal(full(out), a + b));
    torch::Tensor self = split(a, Shard(0), 2);
    torch::mul_out(self, self, self);
    EXPECT_TRUE(is_equal(full(self), a * a));
    torch::Tensor empty = mt::empty({0}, line(2), {Replicate()});
    torch::add_out(empty, split(a, Shard(0), 2), split(b, Shard(0), 2));
    EXPECT_EQ(empty.sizes(), a.sizes());
    EXPECT_TRUE(is_equal(full(empty), a + b));
    torch::Tensor rows = mt::empty({0}, line(2), {Shard(0)});
    torch::add_out(rows, split(a, Shard(1), 2), split(b, Shard(0), 2));
    EXPECT_EQ(rows.sizes(), a.sizes());
    EXPECT_EQ(mt::DTensor(rows).placements(), Placements{Shard(0)});
    EXPECT_TRUE(is_equal(full(rows), a + b));
    torch::Tensor sums = mt::empty({0}, line(2), {Shard(0)});
    torch::cumsum_out(sums, split(a, Shard(0), 2), 0);
    EXPECT_EQ(sums.sizes(), a.sizes());
    EXPECT_TRUE(is_close(full(sums), a.cumsum(0)));
    torch::Tensor columns = mt::empty({4, 3}, line(2), {Shard(1)});  // a dim that the result does not have
    torch::sum_out(columns, split(a, Shard(0), 2), 0);
    EXPECT_EQ(columns.sizes(), at::IntArrayRef({3}));
    EXPECT_TRUE(is_close(full(columns), a.sum(0)));
  });
}

TEST(Modes, InferenceModeRunsCompositeOperatorsAndKeepsViewsNormal) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({4, 6});
    const torch::Tensor weight = numbers({5, 6});
    const mt::DTensor x = split(whole, Shard(0), 2);
    const mt::DTensor w = split(weight, Replicate(), 2);
    const c10::InferenceMode mode;
    EXPECT_TRUE(is_close(full(torch::linear(x, w)), torch::linear(whole, weight)));
    EXPECT_TRUE(is_equal(full(x.view({2, 2, 6}) * 2), whole.view({2, 2, 6}) * 2));
    EXPECT_TRUE(is_equal(full(torch::softmax(x, 1)), torch::softmax(whole, 1)));
  });
}

// Of operators that meshtorch takes whole, and hands on where they are not what it wanted: tensors from
// outside of the mode have keys at which nothing is done in it.
TEST(Modes, InferenceModeRunsProductsAndAttentionOfEveryForm) {
  on_ranks(2, [](int) {
    const torch::Tensor rows = numbers({4, 6}), square = numbers({6, 6}, torch::kFloat, 2);
    const torch::Tensor batches = numbers({2, 4, 6}, torch::kFloat, 3), heads = numbers({2, 2, 4, 6});
    using Call = std::function<torch::Tensor(const torch::Tensor&, const torch::Tensor&)>;
    const Call product = [](const auto& a, const auto& b) { return torch::matmul(a, b); };
    const Call layer = [](const auto& a, const auto& b) { return torch::linear(a, b); };
    const Call attention = [](const auto& a, const auto& b) {
      return torch::scaled_dot_product_attention(a, b, b);
    };
    const Call dropout = [](const auto& a, const auto& b) {
      return torch::feature_dropout(a, 0.5, /*train=*/false) + b;
    };
    const std::vector<std::tuple<const char*, Call, torch::Tensor, torch::Tensor>> calls{
        {"a matrix", product, rows, square},
        {"a vector", product, rows, square[0]},
        {"batches", product, batches, square},
        {"two batches", product, batches, batches.mT()},
        {"a layer", layer, rows, square},
        {"a layer of batches", layer, batches, square},
        {"a layer of a vector", layer, rows[0], square},
        {"attention", attention, heads, heads},
        {"dropout", dropout, rows, rows},
    };
    for (const auto& [name, call, a, b] : calls) {
      for (const mt::Placement& lies :
           {mt::Placement(Replicate()), mt::Placement(Shard(0)), mt::Placement(mt::Partial())}) {
        SCOPED_TRACE(name);
        const mt::DTensor x = split(a.contiguous(), lies, 2);
        const mt::DTensor w = split(b.contiguous(), Shard(0), 2);
        const c10::InferenceMode mode;
        EXPECT_TRUE(is_close(full(call(x, w)), call(a, b)));
      }
    }
  });
}

TEST(Autograd, CanBeDifferentiatedTwice) {
  on_ranks(2, [](int) {
    const auto second = [](const torch::Tensor& x) {
      const torch::Tensor y = (x * x * x).sum();
      const torch::Tensor first = torch::autograd::grad({y}, {x}, {}, true, true)[0];
      return torch::autograd::grad({first.sum()}, {x})[0];
    };
    const torch::Tensor whole = numbers({5, 2});
    const torch::Tensor expected = second(whole.clone().requires_grad_());
    EXPECT_TRUE(is_close(full(second(split(whole, Shard(0), 2).requires_grad_())), expected));
    // Through from_local, redistribute and to_local too.
    const torch::Tensor local =
        whole.chunk(2)[static_cast<std::size_t>(mt::get_rank())].clone().requires_grad_();
    const mt::DTensor x = mt::DTensor::from_local(local, line(2), {Shard(0)}, {.shape = whole.sizes().vec()});
    const torch::Tensor all = x.redistribute({Replicate()}).to_local();
    const torch::Tensor y = (all * all * all).sum();
    const torch::Tensor first = torch::autograd::grad({y}, {local}, {}, true, true)[0];
    first.sum().backward();
    EXPECT_TRUE(is_close(local.grad(), expected.chunk(2)[static_cast<std::size_t>(mt::get_rank())]));
  });
}

TEST(FromLocal, ShardsThatAreNotEqualAreAnErrorOnEveryRankWhenFirstGathered) {
  on_ranks(2, [](int rank) {
    const mt::DTensor x = mt::DTensor::from_local(numbers({rank == 0 ? 3 : 2, 4}), line(2), {Shard(0)});
    EXPECT_NE(error_of([&] { x.full_tensor(); }).find("rank"), std::string::npos);
    // Also on what was made of it.
    const torch::Tensor y = torch::relu(x) + 1;
    EXPECT_NE(error_of([&] { mt::DTensor(y).redistribute({Shard(1)}); }).find("rank"), std::string::npos);
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({1}), "sum", {}), torch::full({1}, 2.0F)))
        << "the group still works";
  });
}

TEST(Cache, RepeatedCallsAreDecidedOnceAndKeepNothingMore) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const mt::DTensor x = split(numbers({4, 3}), Shard(0), 2);
    const auto step = [&] { (torch::relu(x * 2) + x).view({-1}).sum().item(); };
    step();
    const mt::CacheStatistics once = mt::decision_cache_statistics(mesh);
    for (int i = 0; i < 200; ++i) step();
    const mt::CacheStatistics later = mt::decision_cache_statistics(mesh);
    EXPECT_EQ(later.misses, once.misses);
    EXPECT_EQ(later.size, once.size);
    EXPECT_GE(later.hits, once.hits + 200 * 5);
  });
}

TEST(Tensors, DetachCloneAndSetDataKeepLayoutAndData) {
  on_ranks(2, [](int) {
    const torch::Tensor whole = numbers({4, 3});
    torch::Tensor x = split(whole, Shard(0), 2).requires_grad_();
    EXPECT_FALSE(x.detach().requires_grad());
    EXPECT_TRUE(is_equal(full(x.detach()), whole));
    EXPECT_TRUE(is_equal(full(x.clone().detach()), whole));
    x.set_data(split(whole * 2, Shard(1), 2));
    EXPECT_EQ(mt::DTensor(x).placements(), Placements{Shard(1)});
    EXPECT_TRUE(is_equal(full(x.detach()), whole * 2));
    EXPECT_TRUE(x.is_leaf() && x.requires_grad());
  });
}

// A model of two layers whose parameters are set to the same numbers.
struct Model {
  torch::nn::Linear first{torch::nn::LinearOptions(6, 7)};
  torch::nn::Linear second{torch::nn::LinearOptions(7, 3)};

  Model() {
    const torch::NoGradGuard no_grad;
    int64_t seed = 0;
    for (torch::Tensor& p : parameters()) p.set_data(numbers(p.sizes(), torch::kDouble, seed++) / 8);
  }
  std::vector<torch::Tensor> parameters() const {
    return {first->weight, first->bias, second->weight, second->bias};
  }
  void distribute(const mt::DeviceMesh& mesh) {
    first->weight.set_data(mt::distribute_tensor(first->weight.detach(), mesh, {Shard(0)}));
    first->bias.set_data(mt::distribute_tensor(first->bias.detach(), mesh, {Shard(0)}));
    second->weight.set_data(mt::distribute_tensor(second->weight.detach(), mesh, {Shard(1)}));
    second->bias.set_data(mt::distribute_tensor(second->bias.detach(), mesh, {Replicate()}));
  }
  torch::Tensor loss(const torch::Tensor& x) { return second(torch::gelu(first(x))).square().mean(); }
};

template <class MakeOptimizer>
void check_training(int n, const MakeOptimizer& make) {
  on_ranks(n, [&](int) {
    Model plain;
    Model parallel;
    parallel.distribute(line(n));
    auto plain_optimizer = make(plain.parameters());
    auto parallel_optimizer = make(parallel.parameters());
    const torch::Tensor batch = numbers({5, 6}, torch::kDouble);
    const mt::DTensor batch_split = mt::distribute_tensor(batch, line(n), {Replicate()});
    for (int step = 0; step < 20; ++step) {
      plain_optimizer.zero_grad();
      parallel_optimizer.zero_grad();
      const torch::Tensor a = plain.loss(batch);
      const torch::Tensor b = parallel.loss(batch_split);
      ASSERT_NEAR(a.template item<double>(), b.template item<double>(), 1e-12) << "step " << step;
      a.backward();
      b.backward();
      const double norm_a = torch::nn::utils::clip_grad_norm_(plain.parameters(), 0.5);
      const double norm_b = torch::nn::utils::clip_grad_norm_(parallel.parameters(), 0.5);
      ASSERT_NEAR(norm_a, norm_b, 1e-12) << "step " << step;
      plain_optimizer.step();
      parallel_optimizer.step();
    }
    for (std::size_t i = 0; i < 4; ++i) {
      EXPECT_TRUE(is_close(full(parallel.parameters()[i].detach()), plain.parameters()[i].detach(), 1e-11));
    }
  });
}

TEST(Training, SgdWithClippingEqualsOneDevice) {
  for (const int n : {2, 3, 4}) {
    check_training(n, [](auto parameters) {
      return torch::optim::SGD(parameters, torch::optim::SGDOptions(0.1).momentum(0.9));
    });
  }
}

TEST(Training, AdamWWithClippingEqualsOneDevice) {
  for (const int n : {2, 3, 4}) {
    check_training(
        n, [](auto parameters) { return torch::optim::AdamW(parameters, torch::optim::AdamWOptions(0.01)); });
  }
}

}  // namespace
}  // namespace meshtorch::testing
