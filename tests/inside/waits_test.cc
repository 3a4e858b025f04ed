// Chains of ranks that wait: whoever is at their end is named.
#include "comm/waits.h"

#include <gtest/gtest.h>

#include <map>

namespace meshtorch::testing {
using namespace internal;
namespace {

std::string follow(const std::map<int, Whereabouts>& ranks, int self, const std::vector<int>& late) {
  return follow_waits(self, late, [&](int rank) -> std::optional<Whereabouts> {
    const auto found = ranks.find(rank);
    if (found == ranks.end()) return std::nullopt;
    return found->second;
  });
}

Whereabouts waits_for(int rank) {
  return {Wait{{rank}, "rank " + std::to_string(rank) + " in barrier #1"}, ""};
}
Whereabouts stopped() { return {std::nullopt, "its process 7 is stopped"}; }

TEST(Waits, AChainIsFollowedToItsEnd) {
  EXPECT_EQ(follow({{1, waits_for(2)}, {2, waits_for(3)}, {3, stopped()}}, 0, {1}),
            "\n  rank 1 waits for rank 2 in barrier #1\n  rank 2 waits for rank 3 in barrier #1"
            "\n  rank 3 has not come: its process 7 is stopped");
}

TEST(Waits, RanksThatWaitForEachOtherAreToldSo) {
  EXPECT_EQ(follow({{1, waits_for(2)}, {2, waits_for(0)}}, 0, {1}),
            "\n  rank 1 waits for rank 2 in barrier #1\n  rank 2 waits for rank 0 in barrier #1"
            "\n  so that they wait for each other");
}

TEST(Waits, AChainMayEndOnAnotherHost) {
  const Whereabouts elsewhere{Wait{{0}, "an answer from rank 2 on host-b", true}, ""};
  EXPECT_EQ(follow({{1, elsewhere}}, 0, {1, 5}), "\n  rank 1 waits for an answer from rank 2 on host-b");
}

TEST(Waits, ARankThatGaveUpStillTellsForWhomItWaited) {
  Whereabouts given_up = waits_for(2);
  given_up.wait->is_given_up = true;
  EXPECT_EQ(
      follow({{1, given_up}, {2, stopped()}}, 0, {1}),
      "\n  rank 1 gave up waiting for rank 2 in barrier #1\n  rank 2 has not come: its process 7 is stopped");
}

TEST(Waits, ANoteKeepsAsManyRanksAsFit) {
  WaitNote note;
  EXPECT_FALSE(note.is_there());
  note.write({{0, 1, 2, 3, 4, 5, 6, 7, 8}, "them", true});
  EXPECT_TRUE(note.is_there());
  EXPECT_EQ(note.read().ranks, (std::vector<int>{0, 1, 2, 3, 4, 5, 6, 7}));
  EXPECT_EQ(note.read().what, "them");
  EXPECT_TRUE(note.read().is_for_others);
  note.clear();
  EXPECT_FALSE(note.is_there());
}

}  // namespace
}  // namespace meshtorch::testing
