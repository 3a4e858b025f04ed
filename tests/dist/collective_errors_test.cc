// Mistakes in calls of collectives: the same error on every rank, before anything is sent, and the ranks can
// go on.
#include <future>

#include "rank_data.h"

namespace meshtorch::testing {
namespace {

// The whole message, and that the group works afterwards.
void expect_error(const std::string& expected, const std::function<void()>& call) {
  EXPECT_EQ(error_of(call), expected);
  EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({1}), "max", {}), torch::ones({1})));
}

TEST(CollectiveErrors, ReductionsThatATypeDoesNotHave) {
  on_ranks(2, [](int) {
    expect_error(
        "meshtorch: reduction avg is not defined for Long\n  do: use sum, or convert to a floating type "
        "first",
        [] { mt::all_reduce(torch::ones({2}, torch::kLong), "avg", {}); });
    expect_error(
        "meshtorch: reduction avg is not defined for Bool\n  do: use sum, or convert to a floating type "
        "first",
        [] { mt::reduce_scatter_tensor(torch::ones({2}, torch::kBool), "avg", 0, {}); });
    expect_error("meshtorch: reduction band is not defined for Float\n  do: use an integer or bool tensor",
                 [] { mt::all_reduce_coalesced({torch::ones({2})}, "band", {}); });
    expect_error(
        "meshtorch: reduction max is not defined for ComplexFloat\n  do: use sum or avg, or gather the "
        "tensors and reduce them "
        "yourself",
        [] { mt::all_reduce(torch::ones({2}, torch::kComplexFloat), "max", {}); });
    const std::string unknown = error_of([] { mt::all_reduce(torch::ones({2}), "median", {}); });
    EXPECT_NE(unknown.find("median"), std::string::npos) << unknown;
  });
}

TEST(CollectiveErrors, ArgumentsThatCannotBe) {
  on_ranks(2, [](int rank) {
    const torch::Tensor x = torch::ones({3, 2});
    expect_error(
        "meshtorch: a collective was asked for dim 2 of a tensor of 2 dims\n  do: give a dim from -2 to 1",
        [&] { mt::all_gather_tensor(x, 2, {}); });
    expect_error(
        "meshtorch: a collective was asked for dim -3 of a tensor of 2 dims\n  do: give a dim from -2 to 1",
        [&] { mt::reduce_scatter_tensor(x, "sum", -3, {}); });
    expect_error(
        "meshtorch: all_gather_tensor over 2 ranks got 3 sizes\n  do: give the size of every rank's tensor "
        "along dim 0, or none "
        "if they are equal",
        [&] { mt::all_gather_tensor(x, 0, {}, {3, 3, 3}); });
    expect_error(
        "meshtorch: all_gather_tensor: sizes say that rank " + std::to_string(rank) +
            " has 4 along dim 0, but its tensor is [3, 2]\n  do: give the same true sizes on every rank",
        [&] { mt::all_gather_tensor(x, 0, {}, {4, 4}); });
    expect_error(
        "meshtorch: a coalesced collective takes tensors of one type, not Float and Long\n  do: make one "
        "call for each type",
        [&] { mt::all_reduce_coalesced({x, x.to(torch::kLong)}, "sum", {}); });
    expect_error(
        "meshtorch: reduce_scatter_tensor_coalesced got 2 tensors and 1 dims\n  do: give one dim for each "
        "tensor",
        [&] { mt::reduce_scatter_tensor_coalesced({x, x}, "sum", {0}, {}); });
    expect_error(
        "meshtorch: all_to_all_single without output_splits needs dim 0, 3, to be a multiple of the group's "
        "size, 2\n  do: give "
        "output_splits",
        [&] { mt::all_to_all_single(x, {}, {}, {}); });
    expect_error(
        "meshtorch: all_to_all_single: input_splits add up to 2, but dim 0 has 3\n  do: make them add up to "
        "the size of "
        "dim 0",
        [&] { mt::all_to_all_single(x, {1, 1}, {1, 1}, {}); });
    expect_error(
        "meshtorch: all_to_all_single over 2 ranks got 1 output_splits\n  do: give one for each rank, or "
        "none for equal "
        "ones",
        [&] { mt::all_to_all_single(x, {3}, {2, 1}, {}); });
    expect_error(
        "meshtorch: broadcast from rank 2 of a group of 2 ranks\n  do: give a rank of the group, from 0 to 1",
        [&] { mt::broadcast(x, 2, {}); });
    expect_error(
        "meshtorch: permute_tensor: the pair 0 -> 2 is not in a group of 2 ranks\n  do: give ranks of the "
        "group, from 0 to 1",
        [&] { mt::permute_tensor(x, {{0, 2}}, {}); });
    expect_error(
        "meshtorch: permute_tensor: a rank of the pair 0 -> 0 stands in another pair on the same side\n  do: "
        "let each "
        "rank send once and receive once",
        [&] { mt::permute_tensor(x, {{0, 1}, {0, 0}}, {}); });
  });
}

TEST(CollectiveErrors, TensorsWithoutMemoryOfTheirOwn) {
  on_ranks(2, [](int) {
    const auto refused = [](const std::string& what) {
      return "meshtorch: a collective takes plain dense tensors, and got " + what +
             "\n  argument: the tensor that is sent\n  do: give `to_local()` of a distributed tensor, or "
             "`redistribute` it instead; give `to_dense()` of a sparse one";
    };
    const mt::DTensor x =
        mt::distribute_tensor(torch::ones({3, 2}), mt::init_device_mesh(torch::kCPU, {2}), {mt::Shard(0)});
    expect_error(refused("a distributed one of shape [3, 2]"), [&] { mt::all_reduce(x, "sum", {}); });
    expect_error(refused("a distributed one of shape [3, 2]"), [&] { mt::all_gather_tensor(x, 0, {}); });
    expect_error(refused("a distributed one of shape [3, 2]"), [&] { mt::broadcast(x, 0, {}); });
    expect_error(refused("one of layout Sparse"),
                 [] { mt::all_reduce(torch::eye(2).to_sparse(), "sum", {}); });
  });
}

TEST(CollectiveErrors, RanksOutsideAGroupMayNotCallIt) {
  on_ranks(3, [](int rank) {
    const mt::Group group({0, 2});
    if (rank == 1) {
      EXPECT_EQ(group.rank(), -1);
      EXPECT_EQ(error_of([&] { mt::all_reduce(torch::ones({1}), "sum", group); }),
                "meshtorch: this rank is not in the group of ranks [0, 2]\n  do: call its collectives on "
                "those ranks only");
      EXPECT_NE(error_of([&] { mt::permute_tensor(torch::ones({1}), {}, group); }).find("not in the group"),
                std::string::npos);
    }
    mt::barrier();
  });
}

// Gloo does not find these: see docs/collectives.md.
TEST(CollectiveErrors, OnThreadsEveryRankLearnsOfADisagreement) {
  mt::spawn(3, [](int rank) {
    const auto disagree = [](const std::string& error, const std::string& part) {
      EXPECT_NE(error.find("the ranks of a group disagree on a collective"), std::string::npos) << error;
      EXPECT_NE(error.find(part), std::string::npos) << error;
    };
    const bool odd_one = rank == 1;
    disagree(error_of([&] { mt::all_reduce(torch::ones({odd_one ? 0 : 4}), "sum", {}); }),
             "rank 1: all_reduce(Float[0], sum)");
    disagree(error_of([&] { mt::all_reduce(torch::ones({4}), odd_one ? "max" : "sum", {}); }),
             "rank 1: all_reduce(Float[4], max)");
    disagree(error_of([&] { mt::all_gather_tensor(torch::ones({odd_one ? 3 : 4}), 0, {}); }),
             "rank 2: all_gather_into_tensor(Float[4])");
    disagree(error_of([&] { mt::reduce_scatter_tensor(torch::ones({odd_one ? 6 : 3}), "sum", 0, {}); }),
             "Float[6], sum");
    disagree(
        error_of([&] { mt::broadcast(torch::ones({4}, odd_one ? torch::kLong : torch::kFloat), 0, {}); }),
        "Long[4], root 0");
    disagree(error_of([&] { odd_one ? mt::barrier() : (void)mt::all_reduce(torch::ones({4}), "sum", {}); }),
             "rank 1: barrier()");
    const std::string lost =
        error_of([&] { mt::all_to_all_single(torch::ones({3}), {1, odd_one ? 0 : 1, 1}, {1, 1, 1}, {}); });
    EXPECT_NE(lost.find("rank 1 sends 1 rows to rank 1, which expects 0"), std::string::npos) << lost;
    EXPECT_TRUE(is_equal(mt::all_reduce(torch::ones({2}), "sum", {}), torch::full({2}, 3.0F)));
  });
}

// What rank 0 is told of rank 1, a thread that does this.
std::string late_error(const std::string& state) {
  return "meshtorch: a collective did not complete in 50 ms\n  rank 0: is in all_reduce #1; rank 1: has "
         "called "
         "nothing in this group\n  rank 1 has not come: its thread " +
         state + "\n  do: see that all ranks of the group call the same collectives in the same order";
}

TEST(CollectiveErrors, OnThreadsALateRankIsAnErrorThatSaysWhereEachIs) {
  std::promise<void> begun, over;
  mt::spawn(2,
            [&](int rank) {
              if (rank == 1) {
                begun.set_value();
                return over.get_future().wait();
              }
              begun.get_future().wait();
              const std::string error = error_of([] { mt::all_reduce(torch::ones({1}), "sum", {}); });
              EXPECT_TRUE(error == late_error("sleeps") || error == late_error("runs")) << error;
              over.set_value();
            },
            {.timeout = std::chrono::milliseconds(50)});
}

// A rank that fails elsewhere must not pull the arguments away from under peers that are reading them.
TEST(CollectiveErrors, OnThreadsAFailureElsewhereLeavesARunningCollectiveWhole) {
  for (int round = 0; round < 20; ++round) {
    std::atomic<int> right = 0;
    EXPECT_THROW(mt::spawn(4,
                           [&](int rank) {
                             if (rank == 3) throw std::runtime_error("rank 3 fails");
                             const mt::Group group({0, 1, 2});
                             for (int i = 0; i < 50; ++i) {
                               if (torch::equal(mt::all_reduce(torch::ones({4096}), "sum", group),
                                                torch::full({4096}, 3.0F)))
                                 ++right;
                             }
                           }),
                 mt::RankError);
    EXPECT_LE(right, 150);
  }
}

}  // namespace
}  // namespace meshtorch::testing
