// Proof of plans and transfers without torch: every redistribution run on simulated ranks.
#include "redistribute/transfer.h"

#include <gtest/gtest.h>

#include <random>

#include "simulation.h"

namespace meshtorch {
using namespace internal;
namespace {

using simulation::each_index;
using simulation::Simulation;

std::vector<AxisCost> costs(std::size_t axes, bool latency_matters) {
  std::vector<AxisCost> found;
  for (std::size_t a = 0; a < axes; ++a) {
    const double slower = a == 0 ? 8 : 1;
    found.push_back(latency_matters ? AxisCost{1e-5 * slower, 1e-10 * slower}
                                    : AxisCost{1e-9 * slower, 1e-8 * slower});
  }
  return found;
}

void expect_right(const Problem& problem, std::mt19937& random) {
  const Plan plan = plan_redistribute(problem);
  Simulation simulation(problem.shape, problem.mesh);
  simulation.fill(problem.from, random);
  Placements now = problem.from;
  for (const Step& step : plan.steps) {
    ASSERT_EQ(step.before, now);
    simulation.run(step);
    now = step.after;
    ASSERT_TRUE(simulation.is(now)) << ::testing::PrintToString(problem.shape) << " on "
                                    << ::testing::PrintToString(problem.mesh) << "\n"
                                    << plan.to_string();
  }
  ASSERT_EQ(now, problem.to);
}

// All placements of `mesh` with one of `options` on each axis.
std::vector<Placements> combinations(const Placements& options, std::size_t axes) {
  std::vector<Placements> found;
  each_index(Shape(axes, static_cast<std::int64_t>(options.size())), [&](const Shape& choice) {
    Placements placements;
    for (std::int64_t c : choice) placements.push_back(options[static_cast<std::size_t>(c)]);
    found.push_back(placements);
  });
  return found;
}

Placements options_of(const Shape& shape) {
  Placements options{Replicate(), Partial(), Partial(ReduceOp::avg), Partial(ReduceOp::max)};
  for (std::size_t d = 0; d < shape.size(); ++d) options.push_back(Shard(static_cast<std::int64_t>(d)));
  if (!shape.empty()) options.push_back(StridedShard(0, 2));
  if (shape.size() > 1) options.push_back(StridedShard(1, 3));
  return options;
}

struct Case {
  Shape mesh;
  std::vector<Shape> shapes;
  std::size_t every = 1;  // takes one pair of placements of so many
};

class Redistribution : public ::testing::TestWithParam<Case> {};

TEST_P(Redistribution, IsRightBetweenAllPlacements) {
  const auto& [mesh, shapes, every] = GetParam();
  std::mt19937 random(7);
  std::size_t number = 0;
  for (const Shape& shape : shapes) {
    const std::vector<Placements> all = combinations(options_of(shape), mesh.size());
    for (const Placements& from : all) {
      for (const Placements& to : all) {
        if (++number % every != 0) continue;
        const bool latency_matters = number / every % 2 == 0;
        ASSERT_NO_FATAL_FAILURE(
            expect_right({shape, 4, mesh, from, to, costs(mesh.size(), latency_matters)}, random));
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Meshes, Redistribution,
    ::testing::Values(Case{{1}, {{}, {3}, {2, 0}}}, Case{{2}, {{}, {0}, {1}, {4}, {5}, {4, 3}, {3, 1, 2}}},
                      Case{{3}, {{}, {2}, {6}, {7}, {6, 3}, {4, 5}, {2, 3, 4}}},
                      Case{{4}, {{}, {3}, {8}, {9}, {8, 4}, {5, 6}, {2, 0}, {4, 2, 5}}},
                      Case{{2, 2}, {{}, {1}, {3}, {4}, {7}, {0}, {4, 8}, {5, 3}, {2, 4, 3}}},
                      Case{{2, 3}, {{}, {5}, {12}, {13}, {6, 12}, {7, 4}, {1, 5}}},
                      Case{{2, 3}, {{6, 2, 5}}, 5}, Case{{3, 1}, {{5}, {6, 4}}},
                      Case{{2, 2, 2}, {{}, {8}, {11}, {3}}, 29},
                      Case{{2, 2, 2}, {{8, 8}, {5, 9}, {2, 3, 4}}, 1009},
                      Case{{2, 3, 2}, {{12, 12}, {13, 5}}, 1013}, Case{{2, 2, 2, 2}, {{16, 8}}, 200003}),
    [](const auto& test) {
      std::string name;
      for (std::int64_t extent : test.param.mesh)
        name += (name.empty() ? "Mesh" : "x") + std::to_string(extent);
      return name + "Rank" + std::to_string(test.param.shapes.back().size());
    });

TEST(NestedPartials, AreReducedInTheirOrder) {
  std::mt19937 random(11);
  const Placements options{Replicate(), Shard(0), Partial(), Partial(ReduceOp::product),
                           Partial(ReduceOp::min)};
  for (const Placements& from : combinations(options, 2)) {
    for (const Placements& to : combinations(options, 2)) {
      ASSERT_NO_FATAL_FAILURE(expect_right({{5}, 4, {2, 3}, from, to, costs(2, true)}, random));
    }
  }
}

TEST(GroupMembers, AreRowMajorOverTheAxes) {
  const std::vector<Shape> expected{{0, 1, 0}, {0, 1, 1}, {1, 1, 0}, {1, 1, 1}};
  EXPECT_EQ(group_members({2, 3, 2}, {0, 2}, {1, 1, 0}), expected);
  EXPECT_EQ(group_members({2, 3}, {}, {1, 2}), (std::vector<Shape>{{1, 2}}));
}

Step step_of(Step::Kind kind, std::vector<int> axes, Placements before, Placements after) {
  return {.kind = kind, .axes = std::move(axes), .before = std::move(before), .after = std::move(after)};
}

TEST(Pieces, OfAnAllToAllAreTheCrossing) {
  const Step step = step_of(Step::Kind::all_to_all, {0}, {Shard(0)}, {Shard(1)});
  EXPECT_EQ(pieces({4, 6}, {2}, step, {0}, {1}), (std::vector<Piece>{{{{0, 2}, {3, 3}}, {{0, 2}, {0, 3}}}}));
  EXPECT_EQ(pieces({4, 6}, {2}, step, {1}, {0}), (std::vector<Piece>{{{{0, 2}, {0, 3}}, {{2, 2}, {0, 3}}}}));
}

TEST(Pieces, OfStridedShardsAreInOrderOnBothSides) {
  const Step step = step_of(Step::Kind::all_gather, {0}, {StridedShard(0, 2)}, {Replicate()});
  EXPECT_EQ(pieces({8}, {2}, step, {1}, {0}),
            (std::vector<Piece>{{{{0, 2}}, {{2, 2}}}, {{{2, 2}}, {{6, 2}}}}));
}

TEST(Pieces, OfRunsThatTouchOnBothSidesAreOneBox) {
  const Step step = step_of(Step::Kind::all_reduce, {1}, {StridedShard(0, 2), Partial()},
                            {StridedShard(0, 2), Replicate()});
  EXPECT_EQ(pieces({8}, {2, 2}, step, {1, 0}, {1, 1}), (std::vector<Piece>{{{{0, 4}}, {{0, 4}}}}));
}

TEST(Pieces, OfAReplicatedIndexComeFromOneMember) {
  const Step step = step_of(Step::Kind::all_to_all, {0, 1}, {Replicate(), Shard(0)}, {Shard(0), Shard(0)});
  EXPECT_EQ(pieces({8}, {2, 2}, step, {1, 1}, {1, 1}), (std::vector<Piece>{{{{2, 2}}, {{0, 2}}}}));
  EXPECT_TRUE(pieces({8}, {2, 2}, step, {0, 1}, {1, 1}).empty());
  EXPECT_EQ(pieces({8}, {2, 2}, step, {0, 1}, {1, 0}), (std::vector<Piece>{{{{0, 2}}, {{0, 2}}}}));
  EXPECT_TRUE(pieces({8}, {2, 2}, step, {1, 1}, {1, 0}).empty());
}

TEST(Pieces, OfAScalarAreOneBoxWithoutDims) {
  const Step step = step_of(Step::Kind::all_reduce, {0}, {Partial()}, {Replicate()});
  EXPECT_EQ(pieces({}, {2}, step, {1}, {0}), (std::vector<Piece>{{}}));
}

TEST(Pieces, OfAnEmptyTensorAreNone) {
  const Step step = step_of(Step::Kind::all_gather, {0}, {Shard(0)}, {Replicate()});
  EXPECT_TRUE(pieces({0, 3}, {2}, step, {0}, {0}).empty());
  EXPECT_TRUE(pieces({1, 3}, {2}, step, {1}, {0}).empty());
}

}  // namespace
}  // namespace meshtorch
