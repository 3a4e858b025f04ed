// Plans: the direct cases, costs, the printed form, errors, and the work of a search.
#include "redistribute/plan.h"

#include <gtest/gtest.h>

#include <stdexcept>

#include "redistribute/plan_cache.h"
#include "short_placements.h"

namespace meshtorch {
using namespace internal;
namespace {

Problem problem(Shape shape, Shape mesh, Placements from, Placements to, AxisCost cost = {1e-5, 1e-9}) {
  const std::size_t axes = mesh.size();
  return {std::move(shape), 4,
          std::move(mesh),  std::move(from),
          std::move(to),    std::vector<AxisCost>(axes, cost)};
}

// "all_gather[0,1] slice[1]"
std::string steps_of(const Problem& p) {
  std::string text;
  for (const Step& step : plan_redistribute(p).steps) {
    text.append(text.empty() ? "" : " ").append(to_string(step.kind)).append("[");
    for (int axis : step.axes) text.append(text.back() == '[' ? "" : ",").append(std::to_string(axis));
    text.append("]");
  }
  return text;
}

std::string on_one_axis(Placement from, Placement to) {
  return steps_of(problem({64, 64}, {4}, {from}, {to}));
}

std::string on_two_axes(Placements from, Placements to) {
  return steps_of(problem({8, 8}, {2, 4}, std::move(from), std::move(to)));
}

TEST(PlanOnOneAxis, EqualPlacementsNeedNothing) { EXPECT_EQ(on_one_axis(S0, S0), ""); }
TEST(PlanOnOneAxis, ShardToReplicateIsOneAllGather) { EXPECT_EQ(on_one_axis(S0, R), "all_gather[0]"); }
TEST(PlanOnOneAxis, ShardToShardIsOneAllToAll) { EXPECT_EQ(on_one_axis(S0, S1), "all_to_all[0]"); }
TEST(PlanOnOneAxis, PartialToReplicateIsOneAllReduce) { EXPECT_EQ(on_one_axis(P, R), "all_reduce[0]"); }
TEST(PlanOnOneAxis, PartialToShardIsOneReduceScatter) { EXPECT_EQ(on_one_axis(P, S1), "reduce_scatter[0]"); }
TEST(PlanOnOneAxis, ReplicateToShardIsLocal) { EXPECT_EQ(on_one_axis(R, S1), "slice[0]"); }
TEST(PlanOnOneAxis, ReplicateToPartialIsLocal) { EXPECT_EQ(on_one_axis(R, P), "to_partial[0]"); }
TEST(PlanOnOneAxis, PartialToOtherPartialReducesFirst) {
  EXPECT_EQ(on_one_axis(P, PMax), "all_reduce[0] to_partial[0]");
}
TEST(PlanOnOneAxis, ShardToPartialGathersFirst) {
  EXPECT_EQ(on_one_axis(S0, P), "all_gather[0] to_partial[0]");
}
TEST(PlanOnOneAxis, StridedShardToShardIsOneAllToAll) {
  EXPECT_EQ(on_one_axis(StridedShard(0, 2), S0), "all_to_all[0]");
}

TEST(PlanOnTwoAxes, GathersOverBothAtOnce) { EXPECT_EQ(on_two_axes({S0, S0}, {R, R}), "all_gather[0,1]"); }
TEST(PlanOnTwoAxes, GathersDifferentDimsAtOnce) {
  EXPECT_EQ(on_two_axes({S0, S1}, {R, R}), "all_gather[0,1]");
}
TEST(PlanOnTwoAxes, ReducesOverBothAtOnce) { EXPECT_EQ(on_two_axes({P, P}, {R, R}), "all_reduce[0,1]"); }
TEST(PlanOnTwoAxes, ScattersOverBothAtOnce) {
  EXPECT_EQ(on_two_axes({P, P}, {S0, S0}), "reduce_scatter[0,1]");
}
TEST(PlanOnTwoAxes, SlicesOverBothAtOnce) { EXPECT_EQ(on_two_axes({R, R}, {S0, S1}), "slice[0,1]"); }
TEST(PlanOnTwoAxes, SwapsDimsInOneAllToAll) { EXPECT_EQ(on_two_axes({S0, S1}, {S1, S0}), "all_to_all[0,1]"); }
TEST(PlanOnTwoAxes, GathersTheInnerSplitAlone) { EXPECT_EQ(on_two_axes({S0, S0}, {S0, R}), "all_gather[1]"); }
TEST(PlanOnTwoAxes, SlicesBeforeItReduces) {
  EXPECT_EQ(on_two_axes({P, R}, {R, S0}), "slice[1] all_reduce[0]");
}
TEST(PlanOnTwoAxes, GathersAnOuterSplitWithTheInnerAxis) {
  EXPECT_EQ(on_two_axes({S0, S0}, {R, S0}), "all_to_all[0,1]");
}
TEST(PlanOnTwoAxes, ReducesTheLastOfDifferentPartialsFirst) {
  EXPECT_EQ(on_two_axes({P, PMax}, {R, R}), "all_reduce[1] all_reduce[0]");
  EXPECT_EQ(on_two_axes({P, PMax}, {R, PMax}), "all_reduce[1] all_reduce[0] to_partial[1]");
  EXPECT_EQ(on_two_axes({P, PMax}, {P, R}), "all_reduce[1]");
}
TEST(PlanOnTwoAxes, SumAndAverageCommute) {
  EXPECT_EQ(on_two_axes({P, Partial("avg")}, {R, Partial("avg")}), "all_reduce[0]");
  EXPECT_EQ(on_two_axes({P, Partial("avg")}, {R, R}), "all_reduce[0,1]");
}
TEST(PlanOnTwoAxes, StridedShardIsTheOtherOrderOfSplits) {
  // As fully sharded data parallelism over tensor parallelism has it: axis 0 splits what axis 1
  // left.
  EXPECT_EQ(on_two_axes({StridedShard(0, 4), S0}, {R, S0}), "all_gather[0]");
  EXPECT_EQ(on_two_axes({R, S0}, {StridedShard(0, 4), S0}), "slice[0]");
}

TEST(PlanCost, SlowAxisCarriesTheLeast) {
  Problem p = problem({1 << 20}, {2, 8}, {P, P}, {R, R});
  p.costs = {{1e-5, 1e-8}, {1e-5, 1e-10}};
  EXPECT_EQ(steps_of(p), "reduce_scatter[1] all_reduce[0] all_gather[1]");
}

TEST(PlanCost, IsLatencyOnceAndBytesOfTheLargestRank) {
  const Plan gather = plan_redistribute(problem({12}, {4}, {S0}, {R}, {1.0, 0.5}));
  EXPECT_EQ(gather.bytes_sent, 36);
  EXPECT_EQ(gather.peak_bytes, 12 + 48);
  EXPECT_DOUBLE_EQ(gather.seconds, 1.0 + 18.0);
  EXPECT_EQ(plan_redistribute(problem({10}, {4}, {P}, {R})).bytes_sent, 60);
  EXPECT_EQ(plan_redistribute(problem({10}, {4}, {P}, {S0})).bytes_sent, 30);
  EXPECT_EQ(plan_redistribute(problem({8, 8}, {4}, {S0}, {S1})).bytes_sent, 48);
}

TEST(PlanCost, OfUnevenShardsIsThatOfTheLargest) {
  const Plan gather = plan_redistribute(problem({10}, {4}, {S0}, {R}, {1.0, 0.5}));
  EXPECT_EQ(gather.bytes_sent, 30);
  EXPECT_EQ(gather.peak_bytes, 12 + 40);
  EXPECT_DOUBLE_EQ(gather.seconds, 1.0 + 0.5 * 3 * 12);
}

TEST(PlanOnAxesOfExtentOne, OnlyRenames) {
  for (const Placement& from : {R, S0, P, PMax}) {
    for (const Placement& to : {R, S1, P, PMax}) {
      const Plan plan = plan_redistribute(problem({3, 5}, {1}, {from}, {to}));
      EXPECT_EQ(plan.bytes_sent, 0);
      EXPECT_EQ(plan.seconds, 0);
      EXPECT_EQ(plan.steps.size(), from == to ? 0U : 1U);
      if (from != to) {
        EXPECT_EQ(plan.steps[0].after, Placements{to});
      }
    }
  }
  EXPECT_EQ(steps_of(problem({8}, {1, 2}, {P, R}, {R, S0})), "slice[0,1]");
  EXPECT_EQ(steps_of(problem({8}, {2, 1}, {S0, S0}, {R, R})), "slice[1] all_gather[0]");
}

TEST(PlanOfAnEmptyTensor, IsLocal) {
  EXPECT_EQ(steps_of(problem({0, 4}, {4, 2}, {S0, P}, {S1, R})), "slice[0,1]");
}

TEST(PlanText, IsATable) {
  EXPECT_EQ(plan_redistribute(problem({1024, 1024}, {2, 4}, {P, S0}, {R, S1})).to_string(),
            "redistribute [P(sum), S(0)] -> [R, S(1)]: 2 steps, 2 collectives, 1.38 MiB sent, 1.50 "
            "MiB peak, 1.46 ms\n"
            "  #  step                 axes  placements                            sent      peak  "
            "     time\n"
            "  1  reduce_scatter(sum)  0     [P(sum), S(0)] -> [S(1), S(0)]  512.00 KiB  1.50 MiB  "
            "534.29 us\n"
            "  2  all_to_all           0, 1  [S(1), S(0)] -> [R, S(1)]       896.00 KiB  1.50 MiB  "
            "927.50 us\n");
  EXPECT_EQ(Plan{}.to_string(), "redistribute: nothing to do\n");
}

TEST(PlanErrors, NameTheProblemAndTheRemedy) {
  const auto message = [](const Problem& p) {
    try {
      plan_redistribute(p);
    } catch (const std::invalid_argument& error) {
      return std::string(error.what());
    }
    return std::string("no error");
  };
  EXPECT_EQ(message(problem({4}, {2}, {Shard(1)}, {R})),
            "meshtorch: S(1) does not name a dim of a tensor of 1 dims.\n"
            "  redistribute [S(1)] -> [R] over a mesh of 1 axes\n"
            "  do: normalize the placements, and split a dim from 0 to 0");
  EXPECT_EQ(message(problem({4}, {2}, {R, R}, {R})),
            "meshtorch: a mesh of 1 axes got 2 placements or costs.\n"
            "  redistribute [R, R] -> [R] over a mesh of 1 axes\n"
            "  do: give one placement and one cost for each axis");
  EXPECT_EQ(message(problem({4}, {2}, {S0}, {R}, {-1, 0})),
            "meshtorch: the cost of an axis is negative or not finite.\n"
            "  redistribute [S(0)] -> [R] over a mesh of 1 axes\n"
            "  do: give seconds from 0 up");
}

TEST(PlanSearch, GivesTheSamePlanEachTime) {
  const Problem p = problem({12, 12, 12}, {2, 3, 2}, {S0, P, S1}, {S1, S0, R}, {0, 0});
  const Plan first = plan_redistribute(p);
  for (int i = 0; i < 5; ++i) EXPECT_EQ(plan_redistribute(p), first);
}

TEST(PlanSearch, AnswersOneStepProblemsOn1024RanksWithoutRangeArithmetic) {
  SearchStats stats;
  plan_redistribute(problem({4096, 4096}, {32, 32}, {S0, S1}, {R, R}), stats);
  EXPECT_LE(stats.states, 4U);
  EXPECT_EQ(stats.splits, 0U);
}

TEST(PlanSearch, StaysSmallOn1024RanksWithUnevenNestedShards) {
  SearchStats stats;
  plan_redistribute(problem({1000, 1003, 77}, {8, 8, 16}, {S0, S0, P}, {S1, R, S0}), stats);
  EXPECT_LE(stats.states, 125U);
  EXPECT_LE(stats.moves, 5000U);
  EXPECT_LE(stats.splits, 3000U);
}

TEST(PlanCaching, FindsAPlanAgainAndStaysBounded) {
  PlanCache cache(2);
  const auto first = cache.plan(problem({8}, {2}, {S0}, {R}));
  EXPECT_EQ(cache.plan(problem({8}, {2}, {S0}, {R})), first);
  EXPECT_EQ(cache.hits(), 1U);
  for (std::int64_t size = 9; size < 20; ++size) cache.plan(problem({size}, {2}, {S0}, {R}));
  EXPECT_EQ(cache.misses(), 12U);
  EXPECT_LE(cache.size(), 2U);
}

}  // namespace
}  // namespace meshtorch
