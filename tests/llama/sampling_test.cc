// The choice of the next token, and the reading of prompts.
#include "generate.h"

#include <gtest/gtest.h>

#include <cmath>

#include "../dist/ranks.h"

namespace meshtorch::testing {
namespace {

using llama::Ids;
using llama::Sampler;
using llama::SamplingOptions;

// How often each of four tokens, of probabilities 0.5, 0.25, 0.15 and 0.1, is drawn in 4,000 draws.
std::vector<double> shares(const SamplingOptions& options) {
  const std::vector<float> logits{std::log(0.25F), std::log(0.5F), std::log(0.1F), std::log(0.15F)};
  Sampler sampler(options, 0);
  std::vector<double> counts(4);
  for (int i = 0; i < 4000; ++i) counts[static_cast<std::size_t>(sampler.pick(logits))] += 1.0 / 4000;
  return counts;
}

void expect_shares(const SamplingOptions& options, const std::vector<double>& expected) {
  const std::vector<double> actual = shares(options);
  for (std::size_t i = 0; i < expected.size(); ++i) {
    if (expected[i] == 0) {
      EXPECT_EQ(actual[i], 0) << "token " << i;
    } else {
      EXPECT_NEAR(actual[i], expected[i], 0.03) << "token " << i;
    }
  }
}

TEST(Sampling, GreedyTakesTheMostProbableAndTheFirstOfEquals) {
  Sampler sampler({.greedy = true}, 0);
  EXPECT_EQ(sampler.pick(std::vector<float>{1, 3, 2, 3}), 1);
}

TEST(Sampling, DrawsByProbability) { expect_shares({.seed = 1}, {0.25, 0.5, 0.1, 0.15}); }

TEST(Sampling, TemperatureFlattens) {
  const double sum = std::sqrt(0.25) + std::sqrt(0.5) + std::sqrt(0.1) + std::sqrt(0.15);
  expect_shares({.temperature = 2, .seed = 1},
                {std::sqrt(0.25) / sum, std::sqrt(0.5) / sum, std::sqrt(0.1) / sum, std::sqrt(0.15) / sum});
}

TEST(Sampling, TopKKeepsTheMostProbable) { expect_shares({.top_k = 2, .seed = 1}, {1.0 / 3, 2.0 / 3, 0, 0}); }

TEST(Sampling, TopPKeepsTheFewestThatReachIt) {
  expect_shares({.top_p = 0.4, .seed = 1}, {0, 1, 0, 0});
  expect_shares({.top_p = 0.8, .seed = 1}, {0.25 / 0.9, 0.5 / 0.9, 0, 0.15 / 0.9});
}

TEST(Sampling, SeedsAndRowsGiveOtherDraws) {
  const std::vector<float> equal(1000);
  Sampler a({.seed = 1}, 0), again({.seed = 1}, 0), row({.seed = 1}, 1), seed({.seed = 2}, 0);
  const std::int64_t first = a.pick(equal);
  EXPECT_EQ(again.pick(equal), first);
  EXPECT_NE(row.pick(equal), first);
  EXPECT_NE(seed.pick(equal), first);
}

TEST(Sampling, ValuesWithoutMeaningAreErrors) {
  EXPECT_EQ(error_of([] { llama::check(SamplingOptions{.temperature = 0}); }),
            "meshtorch-llama: a temperature has to be positive, it is 0\n  where: --temperature\n"
            "  do: use --greedy for the most probable token");
  EXPECT_EQ(
      error_of([] { llama::check(SamplingOptions{.top_k = -1}); }),
      "meshtorch-llama: top-k cannot be -1\n  where: --top-k\n  do: give a number of tokens, or 0 for all");
  EXPECT_EQ(
      error_of([] { llama::check(SamplingOptions{.top_p = 1.5}); }),
      "meshtorch-llama: top-p cannot be 1.5\n  where: --top-p\n  do: give a probability above 0, at most 1");
}

TEST(Prompts, IdsAndBytesAreRead) {
  EXPECT_EQ(llama::parse_ids("1,5,7"), (Ids{1, 5, 7}));
  EXPECT_EQ(llama::bytes_of("a\xff"), (Ids{97, 255}));
  EXPECT_EQ(llama::text_of({97, 255, 256}), "a\xff<256>");
  for (const char* wrong : {"1,x", "1,,2", "1 2", "99999999999999999999"}) {
    EXPECT_NE(error_of([&] { llama::parse_ids(wrong); }).find("is no token id"), std::string::npos) << wrong;
  }
}

TEST(Prompts, TokensThatTheVocabularyHasNotAreErrors) {
  EXPECT_EQ(error_of([] { llama::check_prompts({{1}, {2, 30}}, 30); }),
            "meshtorch-llama: token id 30 is out of range: the vocabulary has 30 tokens\n  where: prompt 1, "
            "token 1\n"
            "  do: give ids from 0 to 29");
  EXPECT_EQ(
      error_of([] { llama::check_prompts({{}}, 30); }),
      "meshtorch-llama: a prompt needs at least one token\n  where: prompt 0\n  do: give one, as --ids 1");
}

TEST(Prompts, ShorterRowsArePaddedAtTheLeft) {
  const llama::PromptBatch batch = llama::make_batch({{1, 2, 3}, {4}});
  EXPECT_TRUE(is_equal(batch.ids_BS, torch::tensor({{1, 2, 3}, {0, 0, 4}}, torch::kLong)));
  EXPECT_TRUE(is_equal(batch.pads_B, torch::tensor({0, 2}, torch::kLong)));
  EXPECT_FALSE(llama::make_batch({{1, 2}, {3, 4}}).pads_B.defined());
}

}  // namespace
}  // namespace meshtorch::testing
