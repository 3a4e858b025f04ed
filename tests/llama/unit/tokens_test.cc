// Training data: tokens from files, and the windows of a batch.
#include "schedule.h"

#include <gtest/gtest.h>

#include <set>

#include "temporary_file.h"

namespace llama {
namespace {

std::string error_of(const std::function<void()>& call) {
  try {
    call();
  } catch (const std::invalid_argument& error) {
    return error.what();
  }
  ADD_FAILURE() << "no error";
  return "";
}

std::vector<Token> count_to(Token n) {
  std::vector<Token> tokens;
  for (Token i = 0; i < n; ++i) tokens.push_back(i);
  return tokens;
}

TEST(Tokens, ATextIsItsBytes) {
  const TemporaryFile file("text.txt", std::string("A\0\xff\n", 4));
  EXPECT_EQ(read_tokens(file.path()), (std::vector<Token>{65, 0, 255, 10}));
}

TEST(Tokens, AFileOfIdsHoldsNumbers) {
  const TemporaryFile file("corpus.ids", "1 20000\n3\n");
  EXPECT_EQ(read_tokens(file.path()), (std::vector<Token>{1, 20000, 3}));
}

TEST(Tokens, AWordAmongIdsIsAnError) {
  const TemporaryFile file("corpus.ids", "1 2 three");
  EXPECT_EQ(
      error_of([&] { read_tokens(file.path()); }),
      file.path().string() +
          " holds \"three\", which is not a token number.\n  token 2 of the file\n"
          "  do: write tokens as numbers from 0, separated by spaces or lines; text goes in a file whose "
          "name does not end in .ids");
}

TEST(Tokens, AMissingFileIsAnError) {
  EXPECT_EQ(error_of([] { read_tokens("no/such/file"); }),
            "cannot open the training data no/such/file.\n  option --data\n  do: name a "
            "readable file");
}

TEST(TokenWindows, DependOnSeedStepAndRowAlone) {
  const TokenWindows one(count_to(10'000), 8, 5), two(count_to(10'000), 8, 5), other(count_to(10'000), 8, 6);
  std::set<Token> firsts;
  for (int step = 0; step < 10; ++step) {
    for (int row = 0; row < 10; ++row) {
      const auto window = one.window(step, row);
      ASSERT_EQ(window.size(), 9u);
      EXPECT_EQ(window.front() + 8, window.back());
      EXPECT_EQ(window.front(), two.window(step, row).front());
      firsts.insert(window.front());
    }
  }
  EXPECT_GT(firsts.size(), 90u);
  EXPECT_NE(one.window(0, 0).front(), other.window(0, 0).front());
}

TEST(TokenWindows, ReachTheFirstAndTheLastToken) {
  const TokenWindows data(count_to(6), 3, 0);
  std::set<Token> firsts;
  for (int row = 0; row < 100; ++row) firsts.insert(data.window(0, row).front());
  EXPECT_EQ(firsts, (std::set<Token>{0, 1, 2}));
  EXPECT_EQ(data.largest_token(), 5);
}

TEST(TokenWindows, ATextShorterThanAWindowIsAnError) {
  EXPECT_EQ(error_of([] { TokenWindows(count_to(8), 8, 0); }),
            "the training data has 8 tokens, and a window needs 9.\n  options --data and "
            "--sequence-length\n  do: use a longer text or shorter sequences of at least 1");
}

}  // namespace
}  // namespace llama
