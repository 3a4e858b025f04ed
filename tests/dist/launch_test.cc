// Joining a world: spawn, its errors, and what the environment must say.
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

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

TEST(Spawn, ARanksOperatorsUseNoMoreThreadsThanTheCallers) {
  const int before = at::get_num_threads();
  at::set_num_threads(1);
  mt::spawn(1, [](int) { EXPECT_EQ(at::get_num_threads(), 1); });
  at::set_num_threads(2);
  mt::spawn(64, [](int) { EXPECT_LE(at::get_num_threads(), 2); });
  at::set_num_threads(before);
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

// What a lambda of spawn takes by reference is one for all ranks: a rank may see what another made.
TEST(Spawn, WhatAnotherRankMadeIsRefused) {
  torch::Tensor of_rank_0;
  mt::spawn(2, [&](int rank) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {2});
    const mt::DTensor mine = mt::distribute_tensor(torch::ones({5, 2}), mesh, {mt::Shard(0)});
    if (rank == 0) of_rank_0 = mine;
    mt::barrier();
    if (rank == 1) {
      EXPECT_EQ(
          error_of([&] { of_rank_0.sum().item<float>(); }),
          "meshtorch: a mesh, group or distributed tensor of rank 0 was used by rank 1\n  do: make it on "
          "each rank, in variables of the rank's own; share plain tensors only");
      EXPECT_EQ(
          error_of([&] { mine + of_rank_0; }),
          "meshtorch: `aten::add` got tensors on different meshes\n  argument other: DeviceMesh((2), [0, "
          "1], cpu, of rank 0)\n  before it: DeviceMesh((2), [0, 1], cpu)\n  do: put both on one mesh, as "
          "distribute_tensor(x.full_tensor(), mesh, placements) does");
    }
    mt::barrier();
    std::jthread([&] { EXPECT_EQ(mine.sum().item<float>(), 10); });  // works for the rank
  });
}

// What a child process returns that runs `body`, or its signal, negative; it is ended after a minute.
int exit_code_of_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) {
    ::alarm(60);
    ::_exit(body());
  }
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -WTERMSIG(status);
}

TEST(Spawn, IfAThreadCannotBeStartedTheOthersDoNotWaitForIt) {
  const int code = exit_code_of_child([] {
    const bool is_root = ::geteuid() == 0;  // whom the limit does not bind
    const rlimit few{.rlim_cur = is_root ? 3U : 1U, .rlim_max = is_root ? 3U : 1U};
    if (::setrlimit(RLIMIT_NPROC, &few) != 0 || (is_root && ::setuid(65533) != 0)) return 3;
    try {
      mt::spawn(16, [](int) { mt::barrier(); });
    } catch (const mt::RankError& error) {
      const bool is_told = std::string(error.what()).find("cannot be started") != std::string::npos;
      return is_told ? 0 : 2;
    }
    return 1;
  });
  EXPECT_EQ(code, 0);
}

TEST(Spawn, WorksInAForkedProcess) {
  mt::spawn(2, [](int) { mt::barrier(); });  // the parent has used its threads
  for (int repetition = 0; repetition < 40; ++repetition) {
    const int code = exit_code_of_child([] {
      std::atomic<int> ranks = 0;
      mt::spawn(4, [&](int) { ++ranks; });
      return ranks == 4 ? 0 : 1;
    });
    ASSERT_EQ(code, 0) << "in repetition " << repetition;
  }
}

TEST(Spawn, TimeoutsThatNoClockKnowsAreRefused) {
  using std::chrono::milliseconds;
  for (const milliseconds timeout :
       {milliseconds(-1), milliseconds(0), milliseconds::max(), milliseconds::min()}) {
    const std::string error = error_of([&] { mt::spawn(1, [](int) {}, {.timeout = timeout}); });
    EXPECT_EQ(error, c10::str("meshtorch: a timeout of ", timeout.count(),
                              " ms is not between 1 ms and a year\n  in: spawn\n  do: give how long a "
                              "collective may take"));
    EXPECT_NE(error_of([&] {
                mt::init_process_group({.backend = "fake", .rank = 0, .world_size = 1, .timeout = timeout});
              }).find("in: init_process_group"),
              std::string::npos);
  }
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
