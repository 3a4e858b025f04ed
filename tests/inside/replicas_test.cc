// Which replicas a group compares, in which turn, and when one counts as different.
#include "signature/replicas.h"

#include <gtest/gtest.h>

namespace meshtorch::testing {
namespace {

using namespace internal;

class KnownReplica final : public Replica {
 public:
  KnownReplica(std::vector<int> world_ranks, std::uint64_t id) : Replica(std::move(world_ranks), id) {}
  std::string name() const override { return "replica " + std::to_string(id()); }
  bool is_alive() const override { return is_alive_; }
  std::optional<std::uint64_t> checksum(std::uint64_t) const override { return value; }

  std::uint64_t value = 7;
  bool is_alive_ = true;
};

class ReplicasTest : public ::testing::Test {
 protected:
  // What the next turns show, as two ranks that hold the same: the ids.
  std::vector<std::uint64_t> ids_of_turns(Replicas::OfGroup& group, int turns) {
    std::vector<std::uint64_t> ids;
    for (int turn = 0; turn < turns; ++turn) {
      const ReplicaSample mine = group.sample();
      ids.push_back(mine.id);
      EXPECT_EQ(group.compare({mine, mine}), std::nullopt);
    }
    return ids;
  }
  // Compares what this rank shows next with the same part, of another checksum, of the other rank.
  std::optional<std::string> turn_beside(Replicas::OfGroup& group, std::uint64_t checksum_of_other) {
    const ReplicaSample mine = group.sample();
    return group.compare({mine, {mine.id, mine.part, checksum_of_other}});
  }
  std::shared_ptr<KnownReplica> add(std::vector<int> world_ranks, std::uint64_t id) {
    auto replica = std::make_shared<KnownReplica>(std::move(world_ranks), id);
    all_->add(replica);
    return replica;
  }

  std::shared_ptr<Replicas> all_ = std::make_shared<Replicas>();
};

TEST_F(ReplicasTest, AreShownInTurnToGroupsWhoseMembersAllHoldThem) {
  const auto known_before = add({0, 1, 2}, 30);
  Replicas::OfGroup pair(all_, {1, 0});
  const auto of_pair = add({0, 1}, 10);
  const auto of_others = add({1, 2}, 20);
  EXPECT_EQ(ids_of_turns(pair, 5), (std::vector<std::uint64_t>{10, 30, 10, 30, 10}));
}

TEST_F(ReplicasTest, ThatAreFreedAreLeftOut) {
  Replicas::OfGroup pair(all_, {0, 1});
  const auto first = add({0, 1}, 10);
  const auto second = add({0, 1}, 20);
  first->is_alive_ = false;
  EXPECT_EQ(ids_of_turns(pair, 2), (std::vector<std::uint64_t>{20, 20}));
}

TEST_F(ReplicasTest, CountAsDifferentWhenTheyDifferAtTwoTurns) {
  Replicas::OfGroup pair(all_, {0, 1});
  const auto replica = add({0, 1}, 10);
  EXPECT_EQ(turn_beside(pair, 8), std::nullopt);
  EXPECT_EQ(turn_beside(pair, 8), "replica 10");
}

TEST_F(ReplicasTest, ThatAreMadeEqualBetweenTwoTurnsDoNotCount) {
  Replicas::OfGroup pair(all_, {0, 1});
  const auto replica = add({0, 1}, 10);
  EXPECT_EQ(turn_beside(pair, 8), std::nullopt);
  EXPECT_EQ(turn_beside(pair, 7), std::nullopt);
  EXPECT_EQ(turn_beside(pair, 8), std::nullopt);
}

// One rank has freed a tensor that the other still holds: both go on behind what either showed.
TEST_F(ReplicasTest, AreShownAlikeAgainAfterRanksHeldDifferentLists) {
  Replicas::OfGroup pair(all_, {0, 1});
  for (const std::uint64_t id : {10, 20, 30}) add({0, 1}, id);
  const ReplicaSample mine = pair.sample();
  EXPECT_EQ(mine.id, 10U);
  EXPECT_EQ(pair.compare({mine, {20, mine.part, 7}}), std::nullopt) << "different tensors say nothing";
  EXPECT_EQ(ids_of_turns(pair, 2), (std::vector<std::uint64_t>{20, 30}));
}

}  // namespace
}  // namespace meshtorch::testing
