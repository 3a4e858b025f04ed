// Calls that send nothing: which groups compare them, and when.
#include "signature/local_call_log.h"

#include <gtest/gtest.h>

#include "signature/call_subject.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

CallHash hash_of(std::uint64_t number) {
  CallHash hash;
  hash.add(number);
  return hash;
}

class LocalCallLogTest : public ::testing::Test {
 protected:
  void declare(const std::vector<std::int64_t>& ranks, int number) {
    all_->add(ranks, hash_of(static_cast<std::uint64_t>(number)),
              [number] { return "call " + std::to_string(number); });
  }
  std::shared_ptr<LocalCallLog> all_ = std::make_shared<LocalCallLog>();
};

TEST_F(LocalCallLogTest, ConcernGroupsWhoseMembersAllMadeThem) {
  LocalCallLog::OfGroup world(all_, {0, 1, 2, 3});
  LocalCallLog::OfGroup row(all_, {3, 2});
  declare({2, 3}, 1);
  EXPECT_EQ(world.take(), nullptr);
  EXPECT_EQ(row.take()->text(), ", after call 1");
  declare({3, 1, 2, 0}, 2);  // in whatever order
  EXPECT_EQ(world.take()->text(), ", after call 2");
  EXPECT_EQ(row.take()->text(), ", after call 2");
}

TEST_F(LocalCallLogTest, AreTakenOnce) {
  LocalCallLog::OfGroup group(all_, {0, 1});
  declare({0, 1}, 1);
  EXPECT_NE(group.take(), nullptr);
  EXPECT_EQ(group.take(), nullptr);
}

TEST_F(LocalCallLogTest, AreToldApartByWhatTheyAreAndByTheirOrder) {
  const auto folded = [&](const std::vector<int>& numbers) {
    LocalCallLog::OfGroup group(all_, {0, 1});
    for (const int number : numbers) declare({0, 1}, number);
    return group.take()->calls;
  };
  EXPECT_EQ(folded({1, 2}), folded({1, 2}));
  EXPECT_NE(folded({1, 2}), folded({2, 1}));
  EXPECT_NE(folded({1}), folded({1, 1}));
}

TEST_F(LocalCallLogTest, KeepTheWordsOfTheLatest) {
  LocalCallLog::OfGroup group(all_, {0, 1});
  for (int number = 1; number <= 100; ++number) declare({0, 1}, number);
  EXPECT_EQ(group.take()->text(), ", after 96 other calls, call 97, call 98, call 99, call 100");
}

TEST_F(LocalCallLogTest, CountTensorsOfEachMesh) {
  EXPECT_EQ(all_->number_of_next_tensor({0, 1}), 1U);
  EXPECT_EQ(all_->number_of_next_tensor({0, 1, 2}), 1U);
  EXPECT_EQ(all_->number_of_next_tensor({0, 1}), 2U);
}

// Two ranks that made different numbers of tensors before.
TEST_F(LocalCallLogTest, CountTensorsAlikeAfterAnErrorThatAllGot) {
  LocalCallLog other;
  all_->number_of_next_tensor({0, 1});
  all_->restart_counts({0, 1}, 7);
  other.restart_counts({0, 1}, 7);
  const std::uint64_t first = all_->number_of_next_tensor({0, 1});
  EXPECT_NE(first, kUnknownOrigin);
  EXPECT_EQ(other.number_of_next_tensor({0, 1}), first);
  EXPECT_EQ(other.number_of_next_tensor({1, 0}), all_->number_of_next_tensor({1, 0}));
  EXPECT_NE(all_->number_of_next_tensor({0, 1}), first);
}

// The same error twice, between which one of them counted on.
TEST_F(LocalCallLogTest, CountTensorsAlikeAfterOneErrorThatComesAgain) {
  LocalCallLog other;
  all_->restart_counts({0, 1}, 7);
  other.restart_counts({0, 1}, 7);
  all_->number_of_next_tensor({0, 1});
  all_->restart_counts({0, 1}, 7);
  other.restart_counts({0, 1}, 7);
  EXPECT_EQ(other.number_of_next_tensor({0, 1}), all_->number_of_next_tensor({0, 1}));
}

TEST_F(LocalCallLogTest, KnowNoNumberOfTensorsThatOtherRanksMakeTooUntilTheyAgree) {
  LocalCallLog::OfGroup pair(all_, {0, 1});
  LocalCallLog::OfGroup all(all_, {0, 1, 2});
  EXPECT_FALSE(pair.may_counts_differ() || all.may_counts_differ());
  all_->number_of_next_tensor({0, 1, 2});
  all_->restart_counts({0, 1}, 7);
  EXPECT_FALSE(pair.may_counts_differ());
  EXPECT_TRUE(all.may_counts_differ());
  EXPECT_EQ(all_->number_of_next_tensor({0, 1, 2}), kUnknownOrigin);
  EXPECT_EQ(all_->number_of_next_tensor({1, 2}), kUnknownOrigin);
  all.agree_on_counts(9);
  EXPECT_FALSE(all.may_counts_differ());
  EXPECT_NE(all_->number_of_next_tensor({0, 1, 2}), kUnknownOrigin);
  EXPECT_NE(all_->number_of_next_tensor({1, 2}), kUnknownOrigin);
  EXPECT_FALSE(LocalCallLog::OfGroup(all_, {2, 1}).may_counts_differ());
}

TEST_F(LocalCallLogTest, KnowNoNumberAfterAnErrorOfTheirOwn) {
  LocalCallLog::OfGroup pair(all_, {0, 1});
  all_->restart_counts();
  EXPECT_TRUE(pair.may_counts_differ());
  EXPECT_TRUE(LocalCallLog::OfGroup(all_, {1, 0}).may_counts_differ());
  EXPECT_EQ(all_->number_of_next_tensor({0, 1}), kUnknownOrigin);
}

}  // namespace
}  // namespace meshtorch::testing
