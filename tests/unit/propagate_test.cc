// The choice of the cheapest option: what is in place stays, what must move moves cheaply.
#include <gtest/gtest.h>

#include <optional>
#include <stdexcept>
#include <string>
#include <vector>

#include "propagate/choose.h"
#include "short_placements.h"

namespace meshtorch {
using namespace internal;
namespace {

using Shapes = std::vector<std::vector<Shape>>;

constexpr Placement S(std::int64_t dim) { return Shard(dim); }

// "[S(0)] [R] -> [S(0)]"
std::string text_of(const std::optional<Choice>& choice) {
  if (!choice) return "impossible";
  std::string text;
  for (const Placements& p : choice->operands) text += to_string(p) + " ";
  text += "->";
  for (const Placements& p : choice->results) text += " " + to_string(p);
  return text;
}

Situation on(const Shape& mesh, const std::vector<Placements>& operands) {
  Situation s;
  s.mesh = mesh;
  s.operands = operands;
  return s;
}

std::string chosen(const Rule& rule, const Shapes& shapes, const Shape& mesh,
                   const std::vector<Placements>& operands) {
  return text_of(choose(bind(rule, shapes), on(mesh, operands)));
}

const Rule kMm = "*m k, *k n -> m n";
const Shapes kMmShapes{{{8, 8}}, {{8, 32}}};

std::string mm(const Shape& mesh, const std::vector<Placements>& operands) {
  return chosen(kMm, kMmShapes, mesh, operands);
}

std::string add(const Shapes& shapes, const Shape& mesh, const std::vector<Placements>& operands) {
  return chosen("+..., +... -> ...", shapes, mesh, operands);
}

std::string relu(const Shape& shape, const Placements& placements) {
  return chosen("... -> ...", {{shape}}, Shape(placements.size(), 2), {placements});
}

// ---- Cost ----

const AxisTensor kTensor{.shape = {8, 4, 6}, .item_size = 4};  // 768 bytes
constexpr AxisCost kAxis{.latency_s = 1000, .seconds_per_byte = 1};

TEST(Cost, FollowsTheRingFormulas) {
  const auto seconds = [](Placement from, Placement to) {
    return move_cost(from, to, kTensor, 4, kAxis).seconds;
  };
  EXPECT_DOUBLE_EQ(seconds(S(0), R), 1000 + 0.75 * 768);
  EXPECT_DOUBLE_EQ(seconds(P, S(0)), 1000 + 0.75 * 768);
  EXPECT_DOUBLE_EQ(seconds(P, R), 1000 + 1.5 * 768);
  EXPECT_DOUBLE_EQ(seconds(S(0), S(1)), 1000 + 0.75 * 192);
  EXPECT_DOUBLE_EQ(seconds(S(0), P), seconds(S(0), R) + seconds(R, P));
  EXPECT_DOUBLE_EQ(seconds(P, Partial(ReduceOp::max)), seconds(P, R) + seconds(R, P));
}

TEST(Cost, SlicingIsLocalAndSmall) {
  const MoveCost slice = move_cost(R, S(0), kTensor, 4, kAxis);
  EXPECT_FALSE(slice.communicates);
  EXPECT_GT(slice.seconds, 0);
  EXPECT_LT(slice.seconds, 192);
  EXPECT_FALSE(move_cost(R, P, kTensor, 4, kAxis).communicates);
}

TEST(Cost, NothingIsPaidForEqualPlacementsOrASingleRank) {
  EXPECT_EQ(move_cost(S(0), S(0), kTensor, 4, kAxis).seconds, 0);
  EXPECT_EQ(move_cost(S(0), R, kTensor, 1, kAxis).seconds, 0);
  EXPECT_FALSE(move_cost(P, R, kTensor, 1, kAxis).communicates);
}

TEST(Cost, UnevenPartsCountAsPadded) {
  EXPECT_DOUBLE_EQ(move_cost(S(2), R, kTensor, 4, kAxis).seconds, 1000 + 3 * 256);
}

TEST(Cost, AStridedShardMovesLikeAnyShard) {
  EXPECT_DOUBLE_EQ(move_cost(StridedShard(0, 2), S(0), kTensor, 2, kAxis).seconds, 1000 + 0.5 * 384);
  EXPECT_DOUBLE_EQ(move_cost(StridedShard(0, 2), R, kTensor, 2, kAxis).seconds, 1000 + 0.5 * 768);
}

// ---- One axis ----

TEST(Propagate, ReplicatedOperandsStayReplicated) { EXPECT_EQ(mm({2}, {{R}, {R}}), "[R] [R] -> [R]"); }

TEST(Propagate, SplitRowsAndSplitWeightGatherTheWeight) {
  EXPECT_EQ(mm({2}, {{S(0)}, {S(0)}}), "[S(0)] [R] -> [S(0)]");
}

TEST(Propagate, AContractedDimSplitOnBothSidesMovesNothing) {
  EXPECT_EQ(mm({2}, {{S(1)}, {S(0)}}), "[S(1)] [S(0)] -> [P(sum)]");
}

TEST(Propagate, WhatIsInPlaceIsNeverMovedWhereSlicingWillDo) {
  EXPECT_EQ(mm({2}, {{R}, {S(0)}}), "[S(1)] [S(0)] -> [P(sum)]");
  EXPECT_EQ(mm({2}, {{R}, {S(1)}}), "[R] [S(1)] -> [S(1)]");
  EXPECT_EQ(mm({2}, {{S(0)}, {R}}), "[S(0)] [R] -> [S(0)]");
}

TEST(Propagate, APendingFactorPassesThroughUnlessItIsSmallerThanTheResult) {
  const Shapes narrowing{{{8, 32}}, {{32, 8}}};
  EXPECT_EQ(chosen(kMm, narrowing, {2}, {{P}, {R}}), "[P(sum)] [R] -> [P(sum)]");
  EXPECT_EQ(chosen(kMm, narrowing, {2}, {{Partial(ReduceOp::avg)}, {R}}), "[P(avg)] [R] -> [P(avg)]");
  EXPECT_EQ(mm({2}, {{P}, {R}}), "[R] [R] -> [R]");
  EXPECT_EQ(add({{{8, 8}}, {{1}}}, {2}, {{R}, {P}}), "[R] [R] -> [R]");
}

// The backward of a norm is linear in the gradient, and makes several pending results of one.
TEST(Propagate, WhatBecomesSeveralPendingResultsIsReducedFirst) {
  EXPECT_EQ(chosen("*a b -> a b, a b", {{{8, 8}}}, {2}, {{P}}), "[R] -> [R] [R]");
}

TEST(Propagate, AReplicatedTermBecomesPendingBesideAPendingOne) {
  EXPECT_EQ(add({{{8, 8}}, {{8, 8}}}, {2}, {{P}, {R}}), "[P(sum)] [P(sum)] -> [P(sum)]");
}

TEST(Propagate, ABroadcastTermIsKeptOrSlicedAsTheRuleSays) {
  EXPECT_EQ(add({{{8, 8}}, {{8}}}, {2}, {{S(0)}, {R}}), "[S(0)] [R] -> [S(0)]");
  EXPECT_EQ(add({{{8, 8}}, {{8}}}, {2}, {{S(1)}, {R}}), "[S(1)] [S(0)] -> [S(1)]");
}

// A reduce-scatter sends half as much, but what it splits is gathered for weights that are split by columns,
// and makes pending gradients of those that are whole.
TEST(Propagate, APendingOperandOfANonlinearOperatorIsScatteredOnlyBesideWhatIsSplit) {
  EXPECT_EQ(relu({8, 8}, {P}), "[R] -> [R]");
  EXPECT_EQ(relu({1024, 1024}, {P}), "[R] -> [R]");
  EXPECT_EQ(chosen("..., ... -> ...", {{{8, 8}}, {{8, 8}}}, {2}, {{P}, {S(1)}}), "[S(1)] [S(1)] -> [S(1)]");
}

TEST(Propagate, ADimThatSplitsEvenlyIsPreferred) {
  const Shapes shapes{{{3, 1024, 1024}}};
  EXPECT_EQ(chosen("a b s! -> a b s!", shapes, {4}, {{S(2)}}), "[S(1)] -> [S(1)]");
}

TEST(Propagate, ASplitDimOfSizeOneOrZeroStaysSplit) {
  EXPECT_EQ(relu({1, 8}, {S(0)}), "[S(0)] -> [S(0)]");
  EXPECT_EQ(relu({0, 8}, {S(0)}), "[S(0)] -> [S(0)]");
}

TEST(Propagate, AWholeDimIsGatheredOrTradedForAnother) {
  EXPECT_EQ(chosen("s! -> s!", {{{8}}}, {2}, {{S(0)}}), "[R] -> [R]");
  // Traded means to be traded back, unless what is gathered would be much more.
  EXPECT_EQ(chosen("a s! -> a s!", {{{64, 64}}}, {4}, {{S(1)}}), "[R] -> [R]");
  EXPECT_EQ(chosen("a s! -> a s!", {{{1024, 1024}}}, {4}, {{S(1)}}), "[S(0)] -> [S(0)]");
}

TEST(Propagate, ACompoundThatCannotBeSplitHereIsGathered) {
  EXPECT_EQ(chosen("*b s -> (b s)", {{{4, 5}}}, {2}, {{S(0)}}), "[S(0)] -> [S(0)]");
  EXPECT_EQ(chosen("*b s -> (b s)", {{{4, 5}}}, {3}, {{S(0)}}), "[R] -> [R]");
}

TEST(Propagate, AMaximumOverASplitDimIsAPendingMaximum) {
  Situation s = on({2}, {{S(1)}});
  s.contracted = ReduceOp::max;
  EXPECT_EQ(text_of(choose(bind("a s -> a", {{{1, 8}}}), s)), "[S(1)] -> [P(max)]");
  EXPECT_EQ(text_of(choose(bind("a s! -> a", {{{1, 8}}}), s)), "[R] -> [R]");
}

TEST(Propagate, ASingleRankNeverPays) {
  const auto choice = choose(bind(kMm, kMmShapes), on({1}, {{S(0)}, {S(0)}}));
  ASSERT_TRUE(choice);
  EXPECT_EQ(choice->cost, 0);
}

TEST(Propagate, TheChoiceNamesItsOptionAndCost) {
  const auto choice = choose(bind(kMm, kMmShapes), on({2}, {{S(0)}, {S(0)}}));
  ASSERT_TRUE(choice);
  ASSERT_EQ(choice->options.size(), 1U);
  EXPECT_EQ(choice->options[0].why, "split m");
  EXPECT_DOUBLE_EQ(choice->cost, 1e-5 + 512 * 1e-10);
}

TEST(Propagate, ItemSizesAndAxisCostsDecide) {
  // x is traded and the result pending, or w is gathered: what is smaller moves.
  Situation s = on({2}, {{S(0)}, {S(0)}});
  s.axis_costs = {{.latency_s = 0, .seconds_per_byte = 1}};
  s.item_sizes = {1, 8, 1};
  EXPECT_EQ(text_of(choose(bind(kMm, kMmShapes), s)), "[S(1)] [S(0)] -> [P(sum)]");
  s.item_sizes = {8, 1, 4};
  EXPECT_EQ(text_of(choose(bind(kMm, kMmShapes), s)), "[S(0)] [R] -> [S(0)]");
}

// ---- Pins ----

TEST(Propagate, APinnedOperandStaysAndTheOthersCome) {
  Situation s = on({2}, {{R}, {S(0)}});
  s.pinned = {true, false};
  s.wanted_results = {Placements{R}};
  const BoundRule bound = bind("+..., +... -> ...", {{{8}}, {{8}}});
  EXPECT_EQ(text_of(choose(bound, s)), "[R] [R] -> [R]");
  s.pinned.clear();
  s.wanted_results.clear();
  EXPECT_EQ(text_of(choose(bound, s)), "[S(0)] [S(0)] -> [S(0)]");
}

TEST(Propagate, AWantedResultRulesOutAPendingOne) {
  Situation s = on({2}, {{S(1)}, {S(0)}});
  s.wanted_results = {Placements{R}};
  EXPECT_EQ(text_of(choose(bind(kMm, kMmShapes), s)), "[R] [R] -> [R]");
}

// ZeRO by placements: addmm of a split batch, a split weight and a split bias.
const Rule kAddmm = "+n, *m k, *k n -> m n";

TEST(Propagate, TheLargestSplitOperandStaysUnlessTheGainIsLarge) {
  const auto addmm = [](std::int64_t batch, std::int64_t width) {
    return chosen(kAddmm, {{{width}}, {{batch, width}}, {{width, width}}}, {4}, {{S(0)}, {S(0)}, {S(1)}});
  };
  EXPECT_EQ(addmm(512, 48), "[R] [S(0)] [R] -> [S(0)]");
  EXPECT_EQ(addmm(8, 1024), "[S(0)] [R] [S(1)] -> [S(1)]");
}

TEST(Propagate, WhatIsKeptStaysWhateverItCosts) {
  Situation s = on({4}, {{S(0)}, {S(0)}, {S(1)}});
  s.kept = {false, true, false};
  const auto bound = bind(kAddmm, {{{1024}}, {{8, 1024}}, {{1024, 1024}}});
  EXPECT_EQ(text_of(choose(bound, s)), "[R] [S(0)] [R] -> [S(0)]");
  // Where no option leaves it, it moves.
  Situation whole = on({2}, {{S(0)}});
  whole.kept = {true};
  EXPECT_EQ(text_of(choose(bind("s! -> s!", {{{8}}}), whole)), "[R] -> [R]");
}

TEST(Propagate, WhatIsPinnedMayLeaveNoOption) {
  Situation s = on({2}, {{P}});
  s.pinned = {true};
  EXPECT_EQ(text_of(choose(bind("... -> ...", {{{8}}}), s)), "impossible");
}

// ---- Several axes ----

TEST(Propagate, AxesAreSettledOneAfterAnother) {
  EXPECT_EQ(mm({2, 2}, {{S(0), R}, {R, S(1)}}), "[S(0), R] [R, S(1)] -> [S(0), S(1)]");
  EXPECT_EQ(mm({2, 2}, {{S(0), S(1)}, {R, S(0)}}), "[S(0), S(1)] [R, S(0)] -> [S(0), P(sum)]");
}

TEST(Propagate, FullyShardedWeightsAreGatheredOnTheDataAxisOnly) {
  const Shapes shapes{{{64, 16}}, {{16, 64}}};
  EXPECT_EQ(chosen("*m k, *k n -> m n", shapes, {2, 4}, {{S(0), R}, {S(0), S(1)}}),
            "[S(0), R] [R, S(1)] -> [S(0), S(1)]");
}

TEST(Propagate, TwoAxesMaySplitOneDim) {
  EXPECT_EQ(relu({8}, {S(0), S(0)}), "[S(0), S(0)] -> [S(0), S(0)]");
  EXPECT_EQ(mm({2, 2}, {{S(1), S(1)}, {S(0), S(0)}}), "[S(1), S(1)] [S(0), S(0)] -> [P(sum), P(sum)]");
}

TEST(Propagate, AnAxisOfOneRankSplitsNothing) {
  EXPECT_EQ(mm({1, 2}, {{R, S(1)}, {S(0), S(0)}}), "[R, S(1)] [R, S(0)] -> [R, P(sum)]");
}

TEST(Propagate, LaterAxesMustSuitEveryCoordinateOfEarlierOnes) {
  // 4 rows over 3 ranks are 2, 2 and 0, each of which splits by 2.
  EXPECT_EQ(chosen("*b s -> (b s)", {{{4, 1}}}, {3, 2}, {{S(0), S(0)}}), "[S(0), S(0)] -> [S(0), S(0)]");
  // 8 rows over 2 ranks are 4 and 4, which do not split by 3 in groups of 5.
  EXPECT_EQ(chosen("*b s -> (b s)", {{{8, 5}}}, {2, 3}, {{S(0), S(0)}}), "[S(0), R] -> [S(0), R]");
  EXPECT_EQ(chosen("*b s -> (b s)", {{{8, 5}}}, {2, 2}, {{S(0), S(0)}}), "[S(0), S(0)] -> [S(0), S(0)]");
}

TEST(Propagate, AMeanIsPendingOnlyWhereEveryPartIsEqual) {
  Situation s = on({2, 2}, {{S(0), S(0)}});
  s.contracted = ReduceOp::avg;
  EXPECT_EQ(text_of(choose(bind("*s -> ", {{{8}}}), s)), "[S(0), S(0)] -> [P(avg), P(avg)]");
  EXPECT_EQ(text_of(choose(bind("*s -> ", {{{6}}}), s)), "[S(0), R] -> [P(avg), R]");
}

TEST(Propagate, SplittingLeftOfAnExistingSplitIsNotLocal) {
  // y could be "sliced" on axis 0, but axis 1 holds its rows in another order: gathering the small
  // x is cheaper than moving y.
  EXPECT_EQ(add({{{8, 1}}, {{8, 64}}}, {2, 2}, {{S(0), R}, {R, S(0)}}), "[R, S(0)] [R, S(0)] -> [R, S(0)]");
}

TEST(Propagate, ThreeAxesOfDataSequenceAndTensorParallelism) {
  const Rule linear = "*b s k, *k n, +n? -> b s n";
  const Shapes shapes{{{8, 16, 32}}, {{32, 64}}, {{64}}};
  EXPECT_EQ(chosen(linear, shapes, {2, 2, 4}, {{S(0), S(1), R}, {R, R, S(1)}, {R, R, S(0)}}),
            "[S(0), S(1), R] [R, R, S(1)] [R, R, S(0)] -> [S(0), S(1), S(2)]");
  EXPECT_EQ(chosen(linear, shapes, {2, 2, 4}, {{S(0), S(1), S(2)}, {R, R, S(0)}, {R, R, R}}),
            "[S(0), S(1), S(2)] [R, R, S(0)] [R, R, P(sum)] -> [S(0), S(1), P(sum)]");
}

// ---- Strided shards ----

TEST(Propagate, AStridedShardIsKeptWhereAllHoldersHaveIt) {
  const Placement strided = StridedShard(1, 2);
  EXPECT_EQ(mm({2, 2}, {{R, R}, {strided, S(1)}}), "[R, R] [SS(1, 2), S(1)] -> [SS(1, 2), S(1)]");
  EXPECT_EQ(add({{{8, 8}}, {{8, 8}}}, {2}, {{strided}, {strided}}), "[SS(1, 2)] [SS(1, 2)] -> [SS(1, 2)]");
  EXPECT_EQ(mm({2}, {{strided}, {StridedShard(0, 2)}}), "[SS(1, 2)] [SS(0, 2)] -> [P(sum)]");
}

TEST(Propagate, AStridedShardIsMovedWhereHoldersDiffer) {
  const std::string plain = "[S(1)] [S(1)] -> [S(1)]";
  EXPECT_EQ(add({{{8, 8}}, {{8, 8}}}, {2}, {{StridedShard(1, 2)}, {S(1)}}), plain);
  EXPECT_EQ(add({{{8, 8}}, {{8, 8}}}, {2}, {{StridedShard(1, 2)}, {StridedShard(1, 4)}}).find("SS"),
            std::string::npos);
}

TEST(Propagate, AStridedShardOfACompoundIsKeptWhereItsPartsAreWholeRows) {
  EXPECT_EQ(chosen("*b s -> (b s)", {{{8, 5}}}, {2}, {{StridedShard(0, 2)}}), "[SS(0, 2)] -> [SS(0, 2)]");
  const auto unflattened = [](std::int64_t pieces) {
    const BoundRule bound =
        bind("*(b s) -> b s", {{{24}}}, {.lengths = {}, .positions = {}, .sizes = {{"s", 2}}});
    return text_of(choose(bound, on({3}, {{StridedShard(0, pieces)}})));
  };
  EXPECT_EQ(unflattened(4), "[SS(0, 4)] -> [SS(0, 4)]");
  EXPECT_EQ(unflattened(8), "[R] -> [R]");  // parts of one, rows of two
}

// ---- Lists ----

TEST(Propagate, ElementsOfPairedListsAreSettledSeparately) {
  const Rule add_scaled = "+...[], +...[], * -> ...[]";
  const Shapes shapes{{{8}, {4, 4}, {2}}, {{8}, {4, 4}, {2}}, {{}}};
  EXPECT_EQ(chosen(add_scaled, shapes, {2}, {{S(0)}, {S(1)}, {R}, {R}, {S(1)}, {R}, {R}}),
            "[S(0)] [S(1)] [R] [S(0)] [S(1)] [R] [R] -> [S(0)] [S(1)] [R]");
}

TEST(Propagate, WhatPairedListsShareIsReplicated) {
  const auto choice = choose(bind("*...[], * -> ...[]", {{{8}, {8}}, {{}}}), on({2}, {{S(0)}, {R}, {P}}));
  EXPECT_EQ(text_of(choice), "[S(0)] [R] [R] -> [S(0)] [R]");
  EXPECT_EQ(choice->options[0].to_string(), "S(0) R R -> S(0) R: element by element");
}

TEST(Propagate, APinnedListStaysElementByElement) {
  Situation s = on({2}, {{S(0)}, {R}, {R}, {S(0)}});
  s.pinned = {true, true, false, false};
  s.wanted_results = {Placements{S(0)}, Placements{R}};
  EXPECT_EQ(text_of(choose(bind("+...[], +...[] -> ...[]", {{{8}, {8}}, {{8}, {8}}}), s)),
            "[S(0)] [R] [S(0)] [R] -> [S(0)] [R]");
}

TEST(Propagate, EmptyPairedListsChangeNothing) {
  EXPECT_EQ(chosen("*...[], * -> ...[]", {{}, {{}}}, {2}, {{P}}), "[P(sum)] ->");
}

// ---- Errors ----

TEST(Propagate, ASituationThatDoesNotFitIsAnError) {
  const BoundRule bound = bind("... -> ...", {{{8}}});
  EXPECT_THROW(choose(bound, on({2}, {})), std::invalid_argument);
  try {
    choose(bound, on({2, 2}, {{R}}));
    FAIL();
  } catch (const std::invalid_argument& e) {
    EXPECT_STREQ(e.what(),
                 "meshtorch: a situation that does not fit its rule\n"
                 "  1 operand tensors and 2 mesh axes, in the rule `... -> ...`\n"
                 "  do: give one entry for each tensor and each axis");
  }
}

}  // namespace
}  // namespace meshtorch
