// Products of distributed tensors with a matrix: one node of the graph each, with the gradients of plain
// ones.
#include <torch/csrc/autograd/forward_grad.h>

#include "numbers.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Replicate;
using mt::Shard;

struct Operands {
  torch::Tensor input, weight, bias;
};

Operands plain_operands(at::IntArrayRef rows, int64_t columns = 6) {
  std::vector<int64_t> sizes = rows.vec();
  sizes.push_back(columns);
  return {numbers(sizes, torch::kDouble, 1).requires_grad_(),
          numbers({4, columns}, torch::kDouble, 2).requires_grad_(),
          numbers({4}, torch::kDouble, 3).requires_grad_()};
}

struct Split {
  const char* name;
  mt::Placement input, weight, bias;
};
const std::vector<Split>& splits() {
  static const std::vector<Split> all{{"columns", Replicate(), Shard(0), Shard(0)},
                                      {"rows", Shard(-1), Shard(1), Replicate()},
                                      {"batch", Shard(0), Replicate(), Replicate()},
                                      {"sequence", Shard(1), Replicate(), Replicate()},
                                      {"nothing", Replicate(), Replicate(), Replicate()}};
  return all;
}

Operands distributed_operands(const Operands& plain, const Split& split, const mt::DeviceMesh& mesh) {
  const auto leaf = [&](const torch::Tensor& t, const mt::Placement& p) {
    return mt::distribute_tensor(t.detach(), mesh, {p}).requires_grad_();
  };
  return {leaf(plain.input, split.input), leaf(plain.weight, split.weight), leaf(plain.bias, split.bias)};
}

using Product = torch::Tensor (*)(const Operands&);
torch::Tensor linear(const Operands& in) { return torch::linear(in.input, in.weight, in.bias); }
torch::Tensor linear_without_bias(const Operands& in) { return torch::linear(in.input, in.weight); }
torch::Tensor matmul(const Operands& in) { return torch::matmul(in.input, in.weight.t()); }
torch::Tensor matmul_of_rows(const Operands& in) {
  return torch::matmul(in.input, in.weight.t().contiguous());
}

torch::Tensor whole(const torch::Tensor& t) { return mt::is_dtensor(t) ? mt::DTensor(t).full_tensor() : t; }

// The result, its gradients, and gradients of these.
std::vector<torch::Tensor> values_of(Product product, const Operands& in) {
  const torch::Tensor y = product(in);
  std::vector<torch::Tensor> leaves{in.input, in.weight};
  if (product == linear) leaves.push_back(in.bias);
  auto first = torch::autograd::grad({y.pow(3).sum()}, leaves, {}, /*retain_graph=*/true,
                                     /*create_graph=*/true);
  const auto second =
      torch::autograd::grad({first[0].pow(2).sum() + first[1].pow(2).sum()}, {in.input, in.weight});
  std::vector<torch::Tensor> values{y};
  values.insert(values.end(), first.begin(), first.end());
  values.insert(values.end(), second.begin(), second.end());
  for (torch::Tensor& value : values) value = whole(value).detach();
  return values;
}

TEST(Product, HasTheValuesAndGradientsOfAPlainOne) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const std::vector<std::vector<int64_t>> shapes{{2, 4}, {4, 2, 3}, {0, 4}, {2, 0}};
    for (const Product product : {linear, linear_without_bias, matmul, matmul_of_rows}) {
      for (const auto& rows : shapes) {
        for (const int64_t columns : {6, 0}) {
          for (const Split& split : splits()) {
            const Operands plain = plain_operands(rows, columns);
            const auto expected = values_of(product, plain);
            const auto actual = values_of(product, distributed_operands(plain, split, mesh));
            for (std::size_t i = 0; i < expected.size(); ++i)
              EXPECT_TRUE(is_close(actual[i], expected[i], 1e-9))
                  << split.name << " of " << rows << ", " << columns << " columns, value " << i;
          }
        }
      }
    }
  });
}

TEST(Product, IsOneNodeOfTheGraph) {
  on_ranks(2, [](int) {
    const Operands in = distributed_operands(plain_operands({2, 4}), splits()[0], line(2));
    EXPECT_EQ(linear(in).grad_fn()->name(), "LinearBackward");
    EXPECT_EQ(matmul(in).grad_fn()->name(), "MatmulBackward");
    const auto edges = linear(in).grad_fn()->next_edges();
    ASSERT_EQ(edges.size(), 3u);
    for (const auto& edge : edges) EXPECT_EQ(edge.function->name(), "torch::autograd::AccumulateGrad");
  });
}

TEST(Product, OfASplitSequenceIsLeftToLibTorch) {
  on_ranks(2, [](int) {
    const Operands in = distributed_operands(plain_operands({2, 4}), splits()[3], line(2));
    EXPECT_NE(linear(in).grad_fn()->name(), "LinearBackward");
  });
}

TEST(Product, KnowsThatWhatItKeptWasChanged) {
  on_ranks(2, [](int) {
    for (const Product product : {linear, matmul}) {
      const Operands in = distributed_operands(plain_operands({2, 4}), splits()[0], line(2));
      const torch::Tensor y = product(in);
      {
        const torch::NoGradGuard no_grad;
        in.weight.mul_(2);
      }
      EXPECT_NE(error_of([&] { y.sum().backward(); }).find("modified by an inplace operation"),
                std::string::npos);
    }
  });
}

TEST(Product, IsFreedByBackward) {
  on_ranks(2, [](int) {
    const Operands in = distributed_operands(plain_operands({2, 4}), splits()[0], line(2));
    const torch::Tensor y = linear(in).sum();
    y.backward();
    EXPECT_NE(error_of([&] { y.backward(); }).find("a second time"), std::string::npos);
  });
}

TEST(Product, ComputesOnlyTheGradientsThatAreAskedFor) {
  on_ranks(2, [](int) {
    Operands in = distributed_operands(plain_operands({2, 4}), splits()[1], line(2));
    in.weight.requires_grad_(false);
    in.bias.requires_grad_(false);
    linear(in).sum().backward();
    EXPECT_TRUE(in.input.grad().defined());
    EXPECT_FALSE(in.weight.grad().defined());
  });
}

// What the optimisers call, past the boxed kernel: a shard, a view of one, and a written number.
TEST(InPlace, WritesTheShardAndWhatSharesItsMemory) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor plain = numbers({6, 4}, torch::kDouble);
    const torch::Tensor other = numbers({6, 4}, torch::kDouble, 1).abs() + 1;
    for (const mt::Placement& placement : {Shard(0), Shard(1), Replicate()}) {
      torch::Tensor expected = plain.clone();
      torch::Tensor actual = mt::distribute_tensor(plain, mesh, {placement});
      const torch::Tensor by = mt::distribute_tensor(other, mesh, {placement});
      const torch::Tensor expected_view = expected.t();
      const torch::Tensor view = actual.t();
      const auto change = [](const torch::Tensor& t, const torch::Tensor& b) {
        t.mul_(0.5).add_(b, 2).add_(0.25).sub_(b).mul_(b).div_(2).div_(b).addcmul_(b, b, 0.5).addcdiv_(b, b,
                                                                                                       3);
        t.lerp_(b, 0.25);
      };
      for (int round = 0; round < 2; ++round) {  // decided, and known
        change(expected, other);
        change(actual, by);
        change(expected_view, other.t());
        change(view, by.t());
      }
      EXPECT_TRUE(is_close(whole(actual), expected, 1e-9)) << mt::to_string({placement});
      EXPECT_TRUE(is_close(whole(view), expected_view, 1e-9)) << mt::to_string({placement});
    }
  });
}

TEST(InPlace, OnAPendingSumTellsItsReducedValue) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::Tensor pending =
        mt::DTensor::from_local(torch::ones({4}, torch::kDouble), mesh, {Partial()});
    for (int round = 1; round < 4; ++round) {
      const torch::Tensor read = torch::exp(pending);  // reduces it, and keeps the value
      EXPECT_TRUE(is_close(whole(read), torch::full({4}, std::exp(2.0 * round), torch::kDouble), 1e-9));
      pending.add_(mt::DTensor::from_local(torch::ones({4}, torch::kDouble), mesh, {Partial()}));
    }
  });
}

// A level of forward-mode derivatives, of which a process has one at a time.
class DualLevel {
 public:
  DualLevel() : level_(torch::autograd::ForwardADLevel::get_next_idx()) {}
  ~DualLevel() { torch::autograd::ForwardADLevel::release_idx(level_); }
  DualLevel(const DualLevel&) = delete;
  DualLevel& operator=(const DualLevel&) = delete;
  torch::Tensor dual(const torch::Tensor& t) const {
    return at::_make_dual(t, torch::ones_like(t), static_cast<int64_t>(level_));
  }
  torch::Tensor tangent(const torch::Tensor& t) const {
    return std::get<1>(at::_unpack_dual(t, static_cast<int64_t>(level_)));
  }

 private:
  std::uint64_t level_;
};

TEST(Product, CarriesOnTheDerivativesOfForwardMode) {
  on_ranks(1, [](int) {
    const mt::DeviceMesh mesh = line(1);
    const torch::NoGradGuard no_grad;
    const Operands plain = plain_operands({2, 3});
    const Operands split = distributed_operands(plain, splits()[2], mesh);
    const DualLevel level;
    using Call = std::function<torch::Tensor(const Operands&)>;
    const std::vector<Call> calls{
        [&](const Operands& o) { return torch::linear(level.dual(o.input.detach()), o.weight.detach()); },
        [&](const Operands& o) { return torch::linear(o.input.detach(), level.dual(o.weight.detach())); },
        [&](const Operands& o) {
          return torch::linear(o.input.detach(), o.weight.detach(), level.dual(o.bias.detach()));
        },
        [&](const Operands& o) {
          return torch::matmul(level.dual(o.input.detach()), o.weight.detach().t());
        }};
    for (const Call& call : calls) {
      const torch::Tensor actual = level.tangent(call(split));
      ASSERT_TRUE(actual.defined());
      EXPECT_TRUE(is_close(mt::full_tensor(actual), level.tangent(call(plain)), 1e-12));
    }
  });
}

// Ranks that are processes have a level each; those that are threads would take each other's tangents away.
TEST(ForwardMode, OfASplitTensorSendsNothingOrIsRefusedOnThreads) {
  on_ranks(2, [](int) {
    const mt::DeviceMesh mesh = line(2);
    const torch::NoGradGuard no_grad;
    const torch::Tensor x = torch::arange(10.0, torch::kDouble).view({5, 2});
    const torch::Tensor split = mt::distribute_tensor(x, mesh, {Shard(0)});
    if (!ranks_are_processes()) {
      const auto error = error_of([&] { (void)at::_make_dual(split, torch::ones_like(split), 0); });
      EXPECT_EQ(
          error,
          "meshtorch: forward-mode derivatives of distributed tensors cannot be taken on ranks that are "
          "threads\n  LibTorch has one level of them a process, and 2 ranks share it\n  do: start the "
          "ranks as processes, by meshtorch-run or torchrun");
      return;
    }
    const DualLevel level;
    const mt::CommDebugMode comm;
    const torch::Tensor tangent = level.tangent(torch::sin(level.dual(split)));
    EXPECT_EQ(comm.get_total_counts(), 0);
    EXPECT_EQ(mt::placements(tangent), mt::Placements{Shard(0)});
    EXPECT_TRUE(is_close(whole(tangent), torch::cos(x), 1e-12));
  });
}

}  // namespace
}  // namespace meshtorch::testing
