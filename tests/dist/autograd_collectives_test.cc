// Differentiable collectives against autograd of the same computation in one process, once and twice.
#include "rank_data.h"

namespace meshtorch::testing {
namespace {

using Tensors = std::vector<torch::Tensor>;

// One computation, written for one rank with collectives, and for rank r of all with plain operators.
struct Computation {
  std::string name;
  std::function<Tensors(const torch::Tensor& x, int rank, int n)> distributed;
  std::function<Tensors(const Tensors& all, int rank, int n)> plain;
  // The shape of each rank's input.
  std::function<std::vector<std::int64_t>(int rank, int n)> shape = [](int, int) {
    return std::vector<std::int64_t>{5, 3};
  };
};

const mt::Splits kUneven{3, 0, 4, 1};
mt::Splits uneven(int n) { return {kUneven.begin(), kUneven.begin() + n}; }
std::size_t at(int rank) { return static_cast<std::size_t>(rank); }

mt::RankPairs ring(int n) {
  mt::RankPairs pairs;
  for (int r = 0; r < n; ++r) pairs.emplace_back(r, (r + 1) % n);
  return pairs;
}

std::vector<Computation> computations() {
  std::vector<Computation> all;
  for (const std::string op : {"sum", "avg", "product", "min", "max"}) {
    all.push_back({"all_reduce " + op,
                   [op](const auto& x, int, int) { return Tensors{mt::all_reduce(x, op, {})}; },
                   [op](const Tensors& xs, int, int) { return Tensors{reduced(xs, op)}; }});
  }
  for (const std::string op : {"sum", "avg"}) {
    all.push_back({"all_reduce_coalesced " + op,
                   [op](const auto& x, int, int) {
                     return mt::all_reduce_coalesced({x, x.select(0, 1), x.sum()}, op, {});
                   },
                   [op](const Tensors& xs, int, int) {
                     const torch::Tensor y = reduced(xs, op);
                     return Tensors{y, y.select(0, 1), y.sum()};
                   }});
    for (const std::int64_t dim : {0, 1, -1}) {
      all.push_back(
          {"reduce_scatter " + op + " at " + std::to_string(dim),
           [=](const auto& x, int, int) { return Tensors{mt::reduce_scatter_tensor(x, op, dim, {})}; },
           [=](const Tensors& xs, int r, int n) { return Tensors{part_of(reduced(xs, op), r, n, dim)}; }});
    }
    all.push_back({"reduce_scatter_coalesced " + op,
                   [op](const auto& x, int, int) {
                     return mt::reduce_scatter_tensor_coalesced({x, x.t(), x.sum()}, op, {0, -1, 0}, {});
                   },
                   [op](const Tensors& xs, int r, int n) {
                     const torch::Tensor y = reduced(xs, op);
                     return Tensors{part_of(y, r, n, 0), part_of(y.t(), r, n, 1),
                                    part_of(y.sum().reshape({1}), r, n, 0)};
                   }});
  }
  for (const std::int64_t dim : {0, 1, -2}) {
    all.push_back({"all_gather at " + std::to_string(dim),
                   [dim](const auto& x, int, int) { return Tensors{mt::all_gather_tensor(x, dim, {})}; },
                   [dim](const Tensors& xs, int, int) { return Tensors{torch::cat(xs, dim)}; }});
    const std::size_t split_dim = dim == 1 ? 1 : 0;
    all.push_back(
        {"all_gather uneven at " + std::to_string(dim),
         [dim](const auto& x, int, int n) { return Tensors{mt::all_gather_tensor(x, dim, {}, uneven(n))}; },
         [dim](const Tensors& xs, int, int) { return Tensors{torch::cat(xs, dim)}; },
         [split_dim](int r, int) {
           std::vector<std::int64_t> shape{2, 2};
           shape[split_dim] = kUneven[at(r)];
           return shape;
         }});
  }
  all.push_back({"all_gather of scalars",
                 [](const auto& x, int, int) { return Tensors{mt::all_gather_tensor(x.sum(), 0, {})}; },
                 [](const Tensors& xs, int, int) {
                   Tensors sums;
                   for (const torch::Tensor& x : xs) sums.push_back(x.sum());
                   return Tensors{torch::stack(sums)};
                 }});
  all.push_back(
      {"reduce_scatter of scalars",
       [](const auto& x, int, int) { return Tensors{mt::reduce_scatter_tensor(x.sum(), "sum", 0, {})}; },
       [](const Tensors& xs, int r, int n) {
         return Tensors{part_of(reduced(xs, "sum").sum().reshape({1}), r, n, 0)};
       }});
  all.push_back({"all_gather_coalesced",
                 [](const auto& x, int, int) {
                   return mt::all_gather_into_tensor_coalesced({x, x.select(1, 0), x.sum()}, {});
                 },
                 [](const Tensors& xs, int, int) {
                   Tensors columns;
                   Tensors sums;
                   for (const torch::Tensor& x : xs) {
                     columns.push_back(x.select(1, 0));
                     sums.push_back(x.sum());
                   }
                   return Tensors{torch::cat(xs), torch::cat(columns), torch::stack(sums)};
                 }});
  all.push_back({"all_to_all equal",
                 [](const auto& x, int, int) { return Tensors{mt::all_to_all_single(x, {}, {}, {})}; },
                 [](const Tensors& xs, int r, int) {
                   Tensors rows;
                   for (const torch::Tensor& x : xs) rows.push_back(x.narrow(0, 2 * r, 2));
                   return Tensors{torch::cat(rows)};
                 },
                 [](int, int n) { return std::vector<std::int64_t>{2 * n, 3}; }});
  // Everyone sends kUneven[to] rows to rank `to`.
  all.push_back({"all_to_all uneven",
                 [](const auto& x, int r, int n) {
                   return Tensors{mt::all_to_all_single(x, mt::Splits(at(n), kUneven[at(r)]), uneven(n), {})};
                 },
                 [](const Tensors& xs, int r, int n) {
                   Tensors rows;
                   for (const torch::Tensor& x : xs) rows.push_back(x.split_with_sizes(uneven(n))[at(r)]);
                   return Tensors{torch::cat(rows)};
                 },
                 [](int, int n) {
                   const mt::Splits splits = uneven(n);
                   return std::vector<std::int64_t>{
                       std::accumulate(splits.begin(), splits.end(), std::int64_t{0}), 2};
                 }});
  all.push_back({"broadcast", [](const auto& x, int, int n) { return Tensors{mt::broadcast(x, n - 1, {})}; },
                 [](const Tensors& xs, int, int n) { return Tensors{xs[at(n - 1)]}; }});
  all.push_back({"permute ring",
                 [](const auto& x, int, int n) { return Tensors{mt::permute_tensor(x, ring(n), {})}; },
                 [](const Tensors& xs, int r, int n) { return Tensors{xs[at((r + n - 1) % n)]}; }});
  all.push_back({"permute one way",
                 [](const auto& x, int, int n) { return Tensors{mt::permute_tensor(x, {{0, n - 1}}, {})}; },
                 [](const Tensors& xs, int r, int n) {
                   return Tensors{r == n - 1 ? xs[0] : torch::zeros_like(xs[at(r)])};
                 }});
  return all;
}

torch::Tensor loss_of(const Tensors& results, int rank, std::size_t first_used = 0) {
  torch::Tensor loss = torch::zeros({}, torch::kDouble);
  for (std::size_t i = first_used; i < results.size(); ++i) {
    const torch::Tensor weights = sample(rank, results[i].sizes(), torch::kDouble, 5 + i) + 0.5;
    loss = loss + (weights * results[i].pow(3)).sum();
  }
  return loss;
}

Tensors gradients(const torch::Tensor& loss, const Tensors& inputs, bool create_graph) {
  Tensors found = torch::autograd::grad({loss}, inputs, {}, true, create_graph, /*allow_unused=*/true);
  for (std::size_t i = 0; i < found.size(); ++i) {
    if (!found[i].defined()) found[i] = torch::zeros_like(inputs[i]);
  }
  return found;
}

Tensors inputs_of(const Computation& c, int n) {
  Tensors xs;
  for (int r = 0; r < n; ++r) {
    auto generator = at::detail::createCPUGenerator(static_cast<std::uint64_t>(r) + 1);
    xs.push_back(torch::randn(c.shape(r, n), generator, torch::kDouble).requires_grad_());
  }
  return xs;
}

// The loss of the whole is the sum of the ranks' losses; its gradients are what each rank must find by
// itself.
void check(const Computation& c, int rank, int n, std::size_t first_used) {
  SCOPED_TRACE(c.name);
  const Tensors xs = inputs_of(c, n);
  torch::Tensor total = torch::zeros({}, torch::kDouble);
  for (int r = 0; r < n; ++r) total = total + loss_of(c.plain(xs, r, n), r, first_used);
  const Tensors expected = gradients(total, xs, true);
  torch::Tensor second_total = torch::zeros({}, torch::kDouble);
  for (int r = 0; r < n; ++r) second_total = second_total + loss_of({expected[at(r)]}, r);
  const Tensors expected_second = gradients(second_total, xs, false);

  const torch::Tensor x = inputs_of(c, n)[at(rank)];
  const Tensors results = c.distributed(x, rank, n);
  const Tensors plain = c.plain(xs, rank, n);
  ASSERT_EQ(results.size(), plain.size());
  for (std::size_t i = 0; i < plain.size(); ++i) EXPECT_TRUE(is_close(results[i], plain[i], 1e-9));
  const torch::Tensor gradient = gradients(loss_of(results, rank, first_used), {x}, true)[0];
  EXPECT_TRUE(is_close(gradient, expected[at(rank)], 1e-9)) << "first derivative";
  const torch::Tensor second = gradients(loss_of({gradient}, rank), {x}, false)[0];
  EXPECT_TRUE(is_close(second, expected_second[at(rank)], 1e-9)) << "second derivative";
}

class Differentiable : public OnRanks {};
INSTANTIATE_TEST_SUITE_P(On, Differentiable, ::testing::Range(1, 5), ranks_in_name);

TEST_P(Differentiable, GradientsOnceAndTwiceAreThoseOfOneProcess) {
  on_all([](int rank, int n) {
    for (const Computation& c : computations()) check(c, rank, n, 0);
  });
}

TEST_P(Differentiable, ResultsThatAreNotUsedGiveZeros) {
  on_all([](int rank, int n) {
    for (const Computation& c : computations()) {
      if (c.name.find("coalesced") != std::string::npos) check(c, rank, n, 1);
    }
  });
}

TEST(DifferentiableCollectives, KeepNoGraphWhereNoneIsAskedFor) {
  on_ranks(2, [](int rank) {
    EXPECT_FALSE(mt::all_reduce(sample(rank, {2}), "sum", {}).requires_grad());
    const torch::Tensor x = sample(rank, {2}).requires_grad_();
    const torch::NoGradGuard guard;
    EXPECT_FALSE(mt::all_reduce(x, "sum", {}).requires_grad());
    EXPECT_FALSE(mt::all_reduce_coalesced({x, x}, "sum", {})[0].requires_grad());
  });
}

TEST(DifferentiableCollectives, HaveASecondName) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = sample(rank, {4}).requires_grad_();
    for (const torch::Tensor& y :
         {mt::all_reduce_autograd(x, "sum", {}), mt::all_gather_tensor_autograd(x, 0, {}),
          mt::reduce_scatter_tensor_autograd(x, "sum", 0, {}), mt::all_to_all_single_autograd(x, {}, {}, {}),
          mt::broadcast_autograd(x, 0, {}), mt::permute_tensor_autograd(x, ring(2), {}),
          mt::all_reduce_coalesced_autograd({x}, "sum", {})[0],
          mt::all_gather_into_tensor_coalesced_autograd({x}, {})[0],
          mt::reduce_scatter_tensor_coalesced_autograd({x}, "sum", {0}, {})[0]}) {
      EXPECT_TRUE(mt::wait_tensor(y).requires_grad());
    }
    EXPECT_FALSE(mt::all_reduce_autograd(x.detach(), "sum", {}).requires_grad());
  });
}

TEST(DifferentiableCollectives, BroadcastKeepsInfinityAwayFromOtherRanks) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = torch::ones({1}).requires_grad_();
    (mt::broadcast(x, 0, {}) * INFINITY).sum().backward();
    EXPECT_TRUE(is_equal(x.grad(), torch::full({1}, rank == 0 ? INFINITY : 0.0F)));
  });
}

TEST(DifferentiableCollectives, ThatSaveNothingGoBackAgain) {
  on_ranks(2, [](int) {
    const torch::Tensor x = torch::ones({2}).requires_grad_();
    const torch::Tensor sum = mt::all_reduce(x, "sum", {}).sum();
    sum.backward();
    sum.backward();
    EXPECT_TRUE(is_equal(x.grad(), torch::full({2}, 4.0)));
  });
}

TEST(DifferentiableCollectives, Errors) {
  on_ranks(2, [](int) {
    const torch::Tensor x = torch::ones({2}).requires_grad_();
    // Forward needs no derivative.
    const torch::Tensor largest = mt::reduce_scatter_tensor(x, "max", 0, {});
    EXPECT_EQ(error_of([&] { largest.sum().backward(); }),
              "meshtorch: reduce_scatter_tensor has no derivative for reduction max\n  do: use sum or avg");
    const torch::Tensor several = mt::all_reduce_coalesced({x, x}, "min", {})[1];
    EXPECT_EQ(error_of([&] { several.sum().backward(); }),
              "meshtorch: all_reduce_coalesced has no derivative for reduction min\n  do: use sum or avg");
    const torch::Tensor once = mt::all_reduce(x, "product", {}).sum();
    once.backward();
    EXPECT_NE(error_of([&] { once.backward(); }).find("retain_graph=true"), std::string::npos);
    const torch::Tensor y = x * 1;
    const torch::Tensor product = mt::all_reduce(y, "product", {});
    y.detach().add_(1);
    EXPECT_NE(error_of([&] { product.sum().backward(); }).find("modified by an inplace operation"),
              std::string::npos);
    mt::barrier();
  });
}

}  // namespace
}  // namespace meshtorch::testing
