// Calls that send nothing: which groups compare them, and when.
#include "comm/declarations.h"

#include <gtest/gtest.h>

namespace meshtorch::testing {
using namespace internal;
namespace {

CallHash hash_of(std::uint64_t number) {
  CallHash hash;
  hash.add(number);
  return hash;
}

class DeclarationsTest : public ::testing::Test {
 protected:
  void declare(const std::vector<std::int64_t>& ranks, int number) {
    all_->add(ranks, hash_of(static_cast<std::uint64_t>(number)),
              [number] { return "call " + std::to_string(number); });
  }
  std::shared_ptr<Declarations> all_ = std::make_shared<Declarations>();
};

TEST_F(DeclarationsTest, ConcernGroupsWhoseMembersAllMadeThem) {
  Declarations::OfGroup world(all_, {0, 1, 2, 3});
  Declarations::OfGroup row(all_, {3, 2});
  declare({2, 3}, 1);
  EXPECT_EQ(world.take(), nullptr);
  EXPECT_EQ(row.take()->text(), ", after call 1");
  declare({3, 1, 2, 0}, 2);  // in whatever order
  EXPECT_EQ(world.take()->text(), ", after call 2");
  EXPECT_EQ(row.take()->text(), ", after call 2");
}

TEST_F(DeclarationsTest, AreTakenOnce) {
  Declarations::OfGroup group(all_, {0, 1});
  declare({0, 1}, 1);
  EXPECT_NE(group.take(), nullptr);
  EXPECT_EQ(group.take(), nullptr);
}

TEST_F(DeclarationsTest, AreToldApartByWhatTheyAreAndByTheirOrder) {
  const auto folded = [&](const std::vector<int>& numbers) {
    Declarations::OfGroup group(all_, {0, 1});
    for (const int number : numbers) declare({0, 1}, number);
    return group.take()->calls;
  };
  EXPECT_EQ(folded({1, 2}), folded({1, 2}));
  EXPECT_NE(folded({1, 2}), folded({2, 1}));
  EXPECT_NE(folded({1}), folded({1, 1}));
}

TEST_F(DeclarationsTest, KeepTheWordsOfTheLatest) {
  Declarations::OfGroup group(all_, {0, 1});
  for (int number = 1; number <= 100; ++number) declare({0, 1}, number);
  EXPECT_EQ(group.take()->text(), ", after 96 other calls, call 97, call 98, call 99, call 100");
}

}  // namespace
}  // namespace meshtorch::testing
