// Chains of ranks that wait: whoever is at their end is named.
#include "liveness/waits.h"
#include "agreement/meeting_memory.h"

#include <ATen/ATen.h>
#include <gtest/gtest.h>
#include <meshtorch/collectives.h>
#include <meshtorch/launch.h>

#include <atomic>
#include <chrono>
#include <map>
#include <thread>

#include "world/rank_context.h"

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
  return {{Wait{{rank}, "rank " + std::to_string(rank) + " in barrier #1"}}, ""};
}
Whereabouts stopped() { return {{}, "its process 7 is stopped"}; }

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
  const Whereabouts elsewhere{{Wait{{0}, "an answer from rank 2 on host-b", true}}, ""};
  EXPECT_EQ(follow({{1, elsewhere}}, 0, {1, 5}), "\n  rank 1 waits for an answer from rank 2 on host-b");
}

TEST(Waits, ARankThatGaveUpStillTellsForWhomItWaited) {
  Whereabouts given_up = waits_for(2);
  given_up.waits[0].is_given_up = true;
  EXPECT_EQ(
      follow({{1, given_up}, {2, stopped()}}, 0, {1}),
      "\n  rank 1 gave up waiting for rank 2 in barrier #1\n  rank 2 has not come: its process 7 is stopped");
}

// The thread that saves a checkpoint waits for rank 0, while another is in a collective with rank 2.
TEST(Waits, OfTwoThreadsOfOneRankAreBothFollowed) {
  MeetingSlot slot;
  const Wait in_group{{2}, "rank 2 in barrier #1"};
  const Wait at_store{{0}, "rank 0 at the store"};
  slot.tell_wait(WaitPlace::group, &in_group);
  slot.tell_wait(WaitPlace::store, &at_store);
  EXPECT_EQ(follow({{1, {slot.read_waits(), ""}}, {2, stopped()}}, 0, {1}),
            "\n  rank 1 waits for rank 2 in barrier #1\n  rank 1 waits for rank 0 at the store"
            "\n  rank 2 has not come: its process 7 is stopped");
  slot.tell_wait(WaitPlace::store, nullptr);
  EXPECT_EQ(follow({{1, {slot.read_waits(), ""}}, {2, stopped()}}, 0, {1}),
            "\n  rank 1 waits for rank 2 in barrier #1\n  rank 2 has not come: its process 7 is stopped");
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

// Rank 0 waits for rank 2, which waits for rank 1 in a group in which rank 0 is not.
TEST(Waits, OfThreadsAreFollowedFromGroupToGroup) {
  std::string told;
  std::atomic<bool> knows = false;
  const auto wait_for = [](const auto& condition) {
    for (int i = 0; i < 6000 && !condition(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
  };
  const auto body = [&](int rank) {
    const Group near({0, 2});
    const Group far({1, 2});
    const at::Tensor one = at::ones({1});
    if (rank == 1) {
      wait_for([&] { return knows.load(); });
    } else if (rank == 0) {
      const auto threads = current_rank()->world().threads;
      wait_for([&] { return threads->follow(0, {2}).find("rank 2 waits") != std::string::npos; });
      near.process_group()->getBackend(c10::DeviceType::CPU)->setTimeout(std::chrono::milliseconds(200));
      try {
        wait_tensor(all_reduce(one, "sum", near));
      } catch (const c10::Error& error) {
        told = error.what_without_backtrace();
      }
      knows = true;
      return;
    }
    wait_tensor(all_reduce(one, "sum", far));
  };
  spawn(3, body, {.timeout = std::chrono::minutes(2)});
  EXPECT_NE(told.find("\n  rank 2 waits for rank 1 in all_reduce #1 of ranks 1, 2"), std::string::npos)
      << told;
  EXPECT_NE(told.find("\n  rank 1 has not come: its thread "), std::string::npos) << told;
}

}  // namespace
}  // namespace meshtorch::testing
