// Random numbers as pure functions: Philox against its published vectors, the distributions, and global
// indices of shards.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>

#include "core/distribution.h"
#include "core/shard_indices.h"

namespace meshtorch {
using namespace internal;
namespace {

RandomWords philox_of(const RandomWords& counter, std::uint32_t key0, std::uint32_t key1) {
  PhiloxBlock<1> block{{{counter[0]}, {counter[1]}, {counter[2]}, {counter[3]}}};
  philox(block, key0, key1);
  return {block.word[0][0], block.word[1][0], block.word[2][0], block.word[3][0]};
}

// The vectors that Random123 publishes (kat_vectors, philox4x32 10).
TEST(Philox, GivesThePublishedWords) {
  EXPECT_EQ(philox_of({0, 0, 0, 0}, 0, 0), (RandomWords{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8}));
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(philox_of({kOnes, kOnes, kOnes, kOnes}, kOnes, kOnes),
            (RandomWords{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd}));
  EXPECT_EQ(philox_of({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, 0xa4093822, 0x299f31d0),
            (RandomWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, KeyIsTheSeedAndCounterIsIndexAndCall) {
  const RandomCall call{.seed = 0x299f31d0a4093822, .number = 0x0370734413198a2e};
  EXPECT_EQ(random_words(call, std::uint64_t{0x85a308d3243f6a88}),
            (RandomWords{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1}));
}

TEST(Philox, BlocksEqualSingleElements) {
  const RandomCall call{.seed = 11, .number = 3};
  std::array<std::uint64_t, 16> index;
  for (std::size_t i = 0; i < index.size(); ++i) index[i] = i * 1000000007;
  const auto block = random_words<16>(call, index);
  for (std::size_t i = 0; i < index.size(); ++i) {
    EXPECT_EQ((RandomWords{block.word[0][i], block.word[1][i], block.word[2][i], block.word[3][i]}),
              random_words(call, index[i]));
  }
}

TEST(Elementary, AgreesWithTheCLibrary) {
  for (int i = 1; i < 4000; ++i) {
    const double x = std::ldexp(1.0 + i * 0.000243, i % 90 - 60);
    EXPECT_NEAR(portable_log(x), std::log(x), 1e-15 * std::fmax(1e-3, std::fabs(std::log(x)))) << x;
    const double y = (i - 2000) * 0.0313;
    EXPECT_NEAR(portable_exp(y) / std::exp(y), 1, 4e-16) << y;
    const double small = (i - 1999.5) / 2000.0;
    EXPECT_NEAR(portable_log1p(small) / std::log1p(small), 1, 2e-15) << small;
    const double turn = i / 4000.0;
    EXPECT_NEAR(sine_and_cosine_of_turn(turn).sine, std::sin(2 * M_PI * turn), 1e-15) << turn;
    EXPECT_NEAR(sine_and_cosine_of_turn(turn).cosine, std::cos(2 * M_PI * turn), 1e-15) << turn;
  }
  EXPECT_EQ(portable_log(1), 0);
  EXPECT_EQ(portable_exp(0), 1);
  EXPECT_EQ(portable_exp(-1000), 0);
  EXPECT_TRUE(std::isinf(portable_exp(1000)));
}

TEST(Distribution, UniformStaysBelowOneWithEveryNumberOfDigits) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(unit<8>(kOnes, kOnes), 1 - 0x1p-8);
  EXPECT_EQ(unit<11>(kOnes, kOnes), 1 - 0x1p-11);
  EXPECT_EQ(static_cast<float>(unit<24>(kOnes, kOnes)), 1 - 0x1p-24f);
  EXPECT_EQ(unit<53>(kOnes, kOnes), 1 - 0x1p-53);
  EXPECT_EQ(unit<53>(0, 0), 0);
  EXPECT_LT(open_unit(kOnes, kOnes), 1);
  EXPECT_GT(open_unit(0, 0), 0);
}

TEST(Distribution, IntegersReachBothEndsAndNoFurther) {
  constexpr std::uint32_t kOnes = 0xffffffff;
  EXPECT_EQ(integer_of({0, 0, 0, 0}, -3, 10), -3);
  EXPECT_EQ(integer_of({kOnes, kOnes, 0, 0}, -3, 10), 6);
  EXPECT_EQ(integer_of({kOnes, kOnes, 0, 0}, 0, 0), -1);
  EXPECT_EQ(integer_of({0x80000000, 0, 0, 0}, 0, 0), std::numeric_limits<std::int64_t>::min());
}

double mean_of(const std::function<double(const RandomWords&)>& value) {
  constexpr std::uint64_t kCount = 100000;
  double sum = 0;
  for (std::uint64_t i = 0; i < kCount; ++i) sum += value(random_words({.seed = 1, .number = 2}, i));
  return sum / kCount;
}

TEST(Distribution, MomentsAreRight) {
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return unit<24>(w[0], w[1]); }), 0.5, 5e-3);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return standard_normal(w); }), 0, 1e-2);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return std::pow(standard_normal(w), 2); }), 1, 2e-2);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return std::pow(standard_normal(w), 4); }), 3, 0.2);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return normal_pair(w).first * normal_pair(w).second; }), 0,
              1e-2);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return static_cast<double>(integer_of(w, -5, 11)); }), 0,
              5e-2);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return bernoulli_of(w, 0.3); }), 0.3, 5e-3);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return exponential_of(w, 4); }), 0.25, 5e-3);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return geometric_of(w, portable_log1p(-0.2)); }), 5, 0.1);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return log_normal_of(w, 0, 0.5); }), std::exp(0.125), 1e-2);
  // Half of a Cauchy distribution lies within sigma of the median.
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return std::fabs(cauchy_of(w, 2, 3) - 2) < 3; }), 0.5, 5e-3);
  EXPECT_NEAR(mean_of([](const RandomWords& w) { return cauchy_of(w, 2, 3) < 2; }), 0.5, 5e-3);
}

std::vector<std::int64_t> indices_of(const ShardIndices& shard, std::int64_t begin, std::int64_t end) {
  std::vector<std::int64_t> found;
  shard.visit_runs(begin, end, [&](std::int64_t first, std::int64_t length) {
    for (std::int64_t i = 0; i < length; ++i) found.push_back(first + i);
  });
  return found;
}

// Every element of the shard, from the definition.
std::vector<std::int64_t> expected_indices(const Shape& global, const Placements& placements,
                                           const Shape& mesh, const Shape& at) {
  std::vector<std::int64_t> found{0};
  for (std::size_t dim = 0; dim < global.size(); ++dim) {
    std::vector<std::int64_t> next;
    for (const std::int64_t before : found) {
      for (const Range& range :
           held_ranges(global[dim], static_cast<std::int64_t>(dim), placements, mesh, at)) {
        for (std::int64_t i = range.begin; i < range.end(); ++i) next.push_back(before * global[dim] + i);
      }
    }
    found = std::move(next);
  }
  return found;
}

TEST(ShardIndices, AreGlobalWhateverTheSplit) {
  const Shape mesh{2, 3};
  for (const Shape& global : std::vector<Shape>{{}, {1}, {7}, {5, 4}, {3, 1, 5}, {2, 3, 4, 5}, {4, 0, 3}}) {
    std::vector<Placement> choices{Replicate(), Partial()};
    for (std::size_t dim = 0; dim < global.size(); ++dim)
      choices.push_back(Shard(static_cast<std::int64_t>(dim)));
    for (const Placement& a : choices) {
      for (const Placement& b : choices) {
        for (std::int64_t at = 0; at < 6; ++at) {
          const Shape coordinate{at / 3, at % 3};
          const ShardIndices shard(global, {a, b}, mesh, coordinate);
          const auto expected = expected_indices(global, {a, b}, mesh, coordinate);
          ASSERT_EQ(shard.count(), static_cast<std::int64_t>(expected.size())) << to_string({a, b});
          ASSERT_EQ(indices_of(shard, 0, shard.count()), expected) << to_string({a, b});
          // Any part can be visited by itself.
          for (std::int64_t cut = 0; cut <= shard.count(); cut += 3) {
            auto parts = indices_of(shard, 0, cut);
            for (const std::int64_t index : indices_of(shard, cut, shard.count())) parts.push_back(index);
            ASSERT_EQ(parts, expected) << to_string({a, b}) << " cut at " << cut;
          }
        }
      }
    }
  }
}

}  // namespace
}  // namespace meshtorch
