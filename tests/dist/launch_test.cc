// Joining a world: spawn, its errors, and what the environment must say.
#include "ranks.h"

namespace meshtorch::testing {
namespace {

TEST(Spawn, RunsEachRankOnceAndGivesItsNumber) {
  std::atomic<int> sum = 0;
  mt::spawn(4, [&](int rank) {
    EXPECT_EQ(mt::get_rank(), rank);
    EXPECT_EQ(mt::get_world_size(), 4);
    EXPECT_EQ(mt::get_backend(), "threads");
    sum += rank;
  });
  EXPECT_EQ(sum, 6);
  EXPECT_FALSE(!ranks_are_processes() && mt::is_initialized());
}

TEST(Spawn, TheFirstRankThatThrowsStopsTheOthersAndIsNamed) {
  try {
    mt::spawn(3, [](int rank) {
      TORCH_CHECK_VALUE(rank != 1, "no good");
      mt::barrier();
    });
    FAIL() << "nothing was thrown";
  } catch (const mt::RankError& error) {
    EXPECT_EQ(error.rank(), 1);
    EXPECT_STREQ(error.what(), "rank 1: no good");
    EXPECT_THROW(std::rethrow_exception(error.cause()), c10::ValueError);
  }
}

TEST(Spawn, WaitingForARankThatHasReturnedIsAnErrorThatNamesIt) {
  const std::string error = error_of([] {
    mt::spawn(2, [](int rank) {
      if (rank == 0) mt::barrier();
    });
  });
  EXPECT_NE(error.find("rank 1 has already returned"), std::string::npos) << error;
  EXPECT_NE(error.find("rank 0: is in barrier #1"), std::string::npos) << error;
}

TEST(Collectives, RanksThatDisagreeGetTheSameErrorAndCanGoOn) {
  mt::spawn(3, [](int rank) {
    const std::string error = error_of([&] { mt::all_reduce(torch::ones({rank == 2 ? 5 : 4}), "sum", {}); });
    EXPECT_NE(error.find("rank 2: all_reduce(Float[5], sum)"), std::string::npos) << error;
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({2}), "sum", {}), torch::full({2}, 3.0F)));
  });
}

TEST(Collectives, AllReduceAddsUp) {
  on_ranks(4, [](int rank) {
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::full({3}, rank + 1.0F), "sum", {}), torch::full({3}, 10.0F)));
  });
}

}  // namespace
}  // namespace meshtorch::testing
