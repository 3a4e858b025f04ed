// Calls that other implementations of distributed tensors get wrong, or refuse, on split CPU tensors.
#include "as_plain.h"

namespace meshtorch::testing {
namespace {

using mt::Partial;
using mt::Placement;
using mt::Replicate;
using mt::Shard;
using torch::Tensor;

constexpr bool kNotDifferentiated = false;

Tensor x(at::IntArrayRef sizes, int64_t seed = 0) { return numbers(sizes, torch::kDouble, seed); }
Tensor index(at::IntArrayRef sizes, int64_t below) {
  return (torch::arange(c10::multiply_integers(sizes), torch::kLong) * 5 + 1).remainder(below).view(sizes);
}
// No two equal, so that an extreme element is one element.
Tensor distinct(at::IntArrayRef sizes) {
  const int64_t count = c10::multiply_integers(sizes);
  return ((torch::arange(count, torch::kDouble) * 7).remainder(static_cast<double>(count)) - 3).view(sizes);
}

// The function of one tensor, with the tensor split on each of its dims in turn, replicated and pending: 5
// rows are uneven on 3 ranks, 2 leave the third with none.
void on_every_split(const Tensor& whole, const std::function<Tensor(const Tensor&)>& f,
                    bool differentiated = true) {
  std::vector<Placement> placements{Replicate()};
  if (whole.is_floating_point()) placements.emplace_back(Partial());
  for (int64_t dim = 0; dim < whole.dim(); ++dim) placements.emplace_back(Shard(dim));
  for (const Placement& p : placements)
    expect_as_plain(3, {{whole, p}}, [&](const Inputs& in) -> Inputs { return {f(in[0])}; }, differentiated);
}

// A function of two tensors that are split alike.
void on_every_split(const Tensor& a, const Tensor& b,
                    const std::function<Tensor(const Tensor&, const Tensor&)>& f) {
  for (int64_t dim = 0; dim < a.dim(); ++dim)
    expect_as_plain(3, {{a, Shard(dim)}, {b, Shard(dim)}},
                    [&](const Inputs& in) -> Inputs { return {f(in[0], in[1])}; });
}

TEST(MeanLosses, HaveTheGradientOfTheWholeBatch) {
  const Tensor a = x({5, 4}), b = x({5, 4}, 2);
  on_every_split(a, b, [](const Tensor& p, const Tensor& t) { return torch::mse_loss(p, t); });
  on_every_split(a, b, [](const Tensor& p, const Tensor& t) { return torch::smooth_l1_loss(p, t); });
  on_every_split(a, b, [](const Tensor& p, const Tensor& t) { return torch::huber_loss(p, t); });
  on_every_split(torch::sigmoid(a), torch::sigmoid(b),
                 [](const Tensor& p, const Tensor& t) { return torch::binary_cross_entropy(p, t.detach()); });
}

TEST(MeanLosses, AreNumbersWhereARankHasNoElement) {
  const Tensor a = x({2, 4}), b = x({2, 4}, 2);
  on_every_split(a, b, [](const Tensor& p, const Tensor& t) { return torch::mse_loss(p, t); });
  on_every_split(a, b, [](const Tensor& p, const Tensor& t) { return torch::smooth_l1_loss(p, t); });
  expect_as_plain(3, {{a, Shard(0)}, {index({2}, 4), Shard(0)}},
                  [](const Inputs& in) -> Inputs { return {torch::cross_entropy_loss(in[0], in[1])}; });
}

TEST(MeanLosses, CosineEmbeddingMaySplitTheVectors) {
  const Tensor sign = torch::tensor({1., -1., 1., 1., -1.}, torch::kDouble);
  for (const Placement& p : {Placement(Shard(0)), Placement(Shard(1))}) {
    expect_as_plain(3, {{x({5, 4}), p}, {x({5, 4}, 2), p}, {sign, Replicate()}},
                    [](const Inputs& in) -> Inputs {
                      return {torch::cosine_embedding_loss(in[0], in[1], in[2].detach())};
                    });
  }
}

// Convolution with `dims` dims, its input and weight split by channels in every combination.
void check_channels(int64_t dims, bool transposed) {
  std::vector<int64_t> input{2, 4}, weight{transposed ? 4 : 5, transposed ? 5 : 4};
  for (int64_t d = 0; d < dims; ++d) {
    input.push_back(4);
    weight.push_back(2);
  }
  for (const Placement& of_input : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    for (const Placement& of_weight : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      expect_as_plain(
          3, {{x(input), of_input}, {x(weight, 2), of_weight}, {x({5}, 3), Shard(0)}},
          [&](const Inputs& in) -> Inputs {
            const std::vector<int64_t> ones(static_cast<std::size_t>(dims), 1);
            const std::vector<int64_t> zeros(static_cast<std::size_t>(dims), 0);
            return {torch::convolution(in[0], in[1], in[2], ones, ones, ones, transposed, zeros, 1)};
          });
    }
  }
}

TEST(Convolutions, MayBeSplitByChannel) {
  for (const int64_t dims : {1, 2, 3}) check_channels(dims, false);
}

TEST(Convolutions, TransposedMayBeSplitByChannel) {
  for (const int64_t dims : {1, 2, 3}) check_channels(dims, true);
}

TEST(GlobalShape, FollowsSqueezeInPlace) {
  on_every_split(x({5, 1, 4}), [](const Tensor& a) { return (a * 1).squeeze_(1); });
}

TEST(GlobalShape, OfAVectorTimesAMatrixIsThatOfTheColumns) {
  for (const Placement& of_vector : {Placement(Replicate()), Placement(Shard(0)), Placement(Partial())}) {
    for (const Placement& of_matrix : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      expect_as_plain(3, {{x({5}), of_vector}, {x({5, 4}, 2), of_matrix}},
                      [](const Inputs& in) -> Inputs { return {torch::matmul(in[0], in[1])}; });
    }
  }
}

TEST(GlobalShape, OfAQuantileIsThatOfTheRest) {
  on_every_split(distinct({5, 4}), [](const Tensor& a) { return torch::quantile(a, 0.3, 0); });
  on_every_split(distinct({5, 4}),
                 [](const Tensor& a) { return torch::quantile(a, 0.3, 1, /*keepdim=*/true); });
}

TEST(Gradients, OfScatterReachInputAndSource) {
  const Tensor rows =
      torch::stack({torch::arange(5), (torch::arange(5) + 2) % 5, (torch::arange(5) + 1) % 5}, 1);
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    for (const Placement& q : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
      const std::vector<Placed> inputs{{x({5, 3}), p}, {rows, q}, {x({5, 3}, 2), q}};
      expect_as_plain(3, inputs, [](const Inputs& in) -> Inputs { return {in[0].scatter(0, in[1], in[2])}; });
      expect_as_plain(3, inputs,
                      [](const Inputs& in) -> Inputs { return {in[0].scatter_add(0, in[1], in[2])}; });
    }
  }
}

TEST(Gradients, OfTheLargestNormGoToTheLargestElement) {
  on_every_split(distinct({5, 4}), [](const Tensor& a) {
    return torch::linalg_vector_norm(a, std::numeric_limits<double>::infinity());
  });
}

TEST(Gradients, ThatAreZeroAreDistributedToo) {
  on_every_split(x({5, 4}), [](const Tensor& a) { return torch::sgn(a); });
  on_every_split(x({5, 4}), [](const Tensor& a) { return a.repeat({0, 2}); });
  on_every_split(x({5, 4}) + 0.1, x({5, 4}, 2) + 0.1,
                 [](const Tensor& a, const Tensor& b) { return torch::copysign(a, b); });
}

TEST(EmptyShards, GiveTheExtremesOfTheOthers) {
  const Tensor two_rows = distinct({2, 4});
  on_every_split(two_rows, [](const Tensor& a) { return a.amax(0); });
  on_every_split(two_rows, [](const Tensor& a) { return a.amin({0, 1}); });
  on_every_split(two_rows, [](const Tensor& a) { return std::get<0>(a.max(0)); });
  on_every_split(two_rows, [](const Tensor& a) { return a.max(); });
  on_every_split(two_rows, [](const Tensor& a) { return a.argmax(0); }, kNotDifferentiated);
  on_every_split(two_rows, [](const Tensor& a) { return a.argmax(); }, kNotDifferentiated);
}

TEST(EmptyShards, AreNormalisedAndTransformed) {
  for (const Placement& p :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2))}) {
    expect_as_plain(
        3, {{x({2, 4, 5}), p}, {x({4}, 2), Replicate()}, {x({4}, 3), Replicate()}},
        [](const Inputs& in) -> Inputs {
          return {torch::batch_norm(in[0], in[1], in[2], {}, {}, /*training=*/true, 0.1, 1e-5, false)};
        });
  }
  on_every_split(x({2, 4}), [](const Tensor& a) { return torch::view_as_real(torch::fft_rfft(a)); });
  on_every_split(x({2, 4}),
                 [](const Tensor& a) { return torch::view_as_real(torch::fft_fft(a, c10::nullopt, 0)); });
}

TEST(Views, OfUnevenShardsAreRight) {
  on_every_split(x({5, 4}), [](const Tensor& a) { return a.reshape({20}); });
  on_every_split(x({5, 4}), [](const Tensor& a) { return a.view({5, 2, 2}); });
  on_every_split(x({6, 5}), [](const Tensor& a) { return a.view({2, 3, 5}).flatten(1); });
  on_every_split(x({2, 5, 3}), [](const Tensor& a) { return a.reshape({10, 3}); });
}

TEST(Attention, MayBeCausal) {
  for (const Placement& p :
       {Placement(Shard(0)), Placement(Shard(1)), Placement(Shard(2)), Placement(Replicate())}) {
    expect_as_plain(
        3, {{x({2, 4, 5, 3}), p}, {x({2, 4, 5, 3}, 2), p}, {x({2, 4, 5, 3}, 3), p}},
        [](const Inputs& in) -> Inputs {
          return {torch::scaled_dot_product_attention(in[0], in[1], in[2], {}, 0.0, /*is_causal=*/true)};
        });
  }
}

TEST(Products, AlongASplitDimAreRight) {
  on_every_split(x({5, 4}) + 0.125, [](const Tensor& a) { return torch::cumprod(a, 0); });
}

TEST(Indexing, WithTensorsAndListsReadsAndWrites) {
  using torch::indexing::TensorIndex;
  on_every_split(x({5, 4}), [](const Tensor& a) { return a.index({torch::tensor({4, 0, 2})}); });
  on_every_split(x({5, 4}),
                 [](const Tensor& a) { return a.index({torch::indexing::Slice(), torch::tensor({3, 1})}); });
  for (const Placement& p : {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1))}) {
    expect_as_plain(3, {{x({5, 4}), p}, {torch::tensor({4, 0, 2}), Replicate()}, {x({3, 4}, 2), p}},
                    [](const Inputs& in) -> Inputs {
                      return {torch::index_put(in[0], {in[1]}, in[2]),
                              torch::index_put(in[0], {in[1]}, in[2], true)};
                    });
  }
}

TEST(Activations, HaveTheirGradients) {
  on_every_split(x({5, 4}) * 3, [](const Tensor& a) { return torch::relu6(a); });
  on_every_split(x({5, 4}) * 2, [](const Tensor& a) { return torch::hardswish(a); });
  on_every_split(x({5, 4}), [](const Tensor& a) { return torch::log_sigmoid(a); });
  for (const Placement& p :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())}) {
    expect_as_plain(3, {{x({5, 4}), p}, {x({4}, 2), Shard(0)}},
                    [](const Inputs& in) -> Inputs { return {torch::prelu(in[0], in[1])}; });
  }
}

TEST(Pooling, HasItsGradient) {
  const Tensor image = distinct({2, 4, 6, 6});
  on_every_split(image, [](const Tensor& a) { return torch::max_pool2d(a, 2); });
  on_every_split(image, [](const Tensor& a) { return torch::avg_pool2d(a, 3, 2, 1); });
  on_every_split(image, [](const Tensor& a) { return torch::adaptive_avg_pool2d(a, {3, 2}); });
}

TEST(GroupNorm, HasItsGradient) {
  for (const Placement& p :
       {Placement(Replicate()), Placement(Shard(0)), Placement(Shard(1)), Placement(Partial())}) {
    expect_as_plain(3, {{x({5, 4, 3}), p}, {x({4}, 2), Shard(0)}, {x({4}, 3), Replicate()}},
                    [](const Inputs& in) -> Inputs { return {torch::group_norm(in[0], 2, in[1], in[2])}; });
  }
}

TEST(ShapesOfData, AreThoseOfTheWhole) {
  on_every_split(x({5, 4}), [](const Tensor& a) { return torch::nonzero(a); }, kNotDifferentiated);
  on_every_split(
      x({5, 4}), [](const Tensor& a) { return std::get<0>(torch::_unique(a.detach())); }, kNotDifferentiated);
  on_every_split(x({5, 4}), [](const Tensor& a) { return torch::masked_select(a, a > 0); });
  on_every_split(index({7}, 4), [](const Tensor& a) { return torch::bincount(a); }, kNotDifferentiated);
}

TEST(PendingSums, PlusAndTimesAScalarCountTheScalarOnce) {
  expect_as_plain(3, {{x({5, 4}), Partial()}}, [](const Inputs& in) -> Inputs {
    return {in[0] + 3, in[0] * 3, 3 - in[0], in[0] / 4, (in[0] * 1).add_(2), torch::add(in[0], in[0], 2)};
  });
}

TEST(PendingSums, AreMadeWholeBeforeTheyAreRounded) {
  expect_as_plain(
      3, {{x({5, 4}) + 0.3, Partial()}},
      [](const Inputs& in) -> Inputs {
        // The same calls but for the type come first: what was decided about them must not serve the others.
        in[0].detach().to(torch::kFloat);
        in[0].detach().sum({0}, false, torch::kDouble);
        return {in[0].detach().to(torch::kLong), in[0].detach().sum({0}, false, torch::kLong)};
      },
      kNotDifferentiated);
}

TEST(PendingSums, StayPendingWhenDividedByANumberAndAreReducedForADivisorThatMayBeZero) {
  on_ranks(2, [](int) {
    const mt::DTensor pending = mt::DTensor::from_local(x({5, 4}), line(2), {Partial()});
    const auto placement_of = [](const Tensor& t) { return mt::DTensor(t).placements().at(0); };
    EXPECT_EQ(placement_of(pending / 4), Partial());
    EXPECT_FALSE(placement_of(pending / 0).is_partial());
    EXPECT_EQ(placement_of(pending / 4), Partial());
    EXPECT_EQ(placement_of(pending / torch::tensor(4.0)), Partial());
    EXPECT_FALSE(placement_of(pending / torch::tensor(0.0)).is_partial());
    // Only what every rank has whole can all of them look at.
    const auto fours = [](const mt::Placement& lies) {
      return mt::distribute_tensor(torch::full({5, 4}, 4.0), line(2), {lies});
    };
    EXPECT_EQ(placement_of(pending / fours(mt::Replicate())), Partial());
    EXPECT_FALSE(placement_of(pending / fours(mt::Replicate()).mul(0)).is_partial());
    EXPECT_FALSE(placement_of(pending / fours(Shard(0))).is_partial());
  });
}

TEST(Statistics, OfUnevenShardsWeighEachElementAlike) {
  for (const int64_t rows : {5, 2}) {
    on_every_split(x({rows, 4}), [](const Tensor& a) { return a.mean(); });
    on_every_split(x({rows, 4}), [](const Tensor& a) { return a.mean(0); });
    on_every_split(x({rows, 4}), [](const Tensor& a) { return a.var(0); });
    on_every_split(x({rows, 4}), [](const Tensor& a) { return a.std(); });
  }
}

TEST(Embeddings, SplitByRowsMayBeUsedTwice) {
  expect_as_plain(3, {{x({7, 4}), Shard(0)}, {index({5}, 7), Replicate()}}, [](const Inputs& in) -> Inputs {
    const Tensor rows = torch::embedding(in[0], in[1]);
    return {rows + 1, rows * rows, rows};
  });
}

TEST(Dropout, DoesNotRepeatItsMaskOnEveryShard) {
  on_ranks(2, [](int) {
    const Tensor kept =
        mt::DTensor(torch::dropout(mt::ones({400}, line(2), {Shard(0)}), 0.5, true)).full_tensor();
    EXPECT_FALSE(torch::equal(kept.slice(0, 0, 200), kept.slice(0, 200)));
  });
}

}  // namespace
}  // namespace meshtorch::testing
