// What is worked out once of a redistribution is what its steps say.
#include "redistribute/prepared_move.h"

#include <gtest/gtest.h>

#include "simulation.h"

namespace meshtorch {
using namespace internal;
namespace {

using simulation::each_index;

PreparedMove prepared(const Shape& shape, const Shape& mesh, const Placements& from, const Placements& to,
                      const Shape& coordinate) {
  const Problem problem{shape, 4, mesh, from, to, std::vector<AxisCost>(mesh.size())};
  return prepare_move(shape, mesh, from, std::make_shared<const Plan>(plan_redistribute(problem)),
                      coordinate);
}

void expect_boxes(const PreparedStep& step, const Shape& mesh, const Shape& coordinate) {
  const auto members = group_members(mesh, step.step.axes, coordinate);
  EXPECT_EQ(step.result, local_shape(step.shape, step.step.after, mesh, coordinate));
  if (!is_collective(step.step.kind) || step.step.kind == Step::Kind::all_reduce) return;
  ASSERT_EQ(step.received.size(), members.size());
  EXPECT_EQ(members[step.me], coordinate);
  for (std::size_t i = 0; i < members.size(); ++i) {
    EXPECT_EQ(step.received[i], pieces(step.shape, mesh, step.step, members[i], coordinate));
    EXPECT_EQ(step.before[i], local_shape(step.shape, step.step.before, mesh, members[i]));
    if (!step.sent.empty()) {
      EXPECT_EQ(step.sent[i], pieces(step.shape, mesh, step.step, coordinate, members[i]));
    }
  }
}

TEST(PreparedMove, HasTheBoxesOfEveryStepOnEveryRank) {
  const Shape shape{5, 4};
  const Shape mesh{2, 3};
  const Placements options{Replicate(), Partial(), Shard(0), Shard(1), StridedShard(0, 2)};
  for (const Placement& a : options) {
    for (const Placement& b : options) {
      for (const Placement& c : options) {
        const Placements from{a, b}, to{c, a};
        each_index(mesh, [&](const Shape& coordinate) {
          const PreparedMove move = prepared(shape, mesh, from, to, coordinate);
          ASSERT_EQ(move.steps.size(), move.plan->steps.size());
          EXPECT_EQ(move.local, local_shape(shape, from, mesh, coordinate));
          for (const PreparedStep& step : move.steps) expect_boxes(step, mesh, coordinate);
        });
      }
    }
  }
}

TEST(PreparedMove, KnowsWhereShardsLieOneAfterTheOther) {
  const auto dim_of = [](const Placement& from) {
    return prepared({6, 4}, {2}, {from}, {Replicate()}, {1}).steps.at(0).concatenated_dim;
  };
  EXPECT_EQ(dim_of(Shard(0)), 0);
  EXPECT_EQ(dim_of(Shard(1)), 1);
  EXPECT_EQ(dim_of(StridedShard(0, 3)), -1);
}

TEST(PreparedMove, WeighsItsBoxes) {
  const PreparedMove none = prepared({6, 4}, {2}, {Replicate()}, {Replicate()}, {0});
  const PreparedMove gather = prepared({6, 4}, {2}, {Shard(0)}, {Replicate()}, {0});
  EXPECT_EQ(none.weight(), 1u);
  EXPECT_EQ(gather.weight(), 1u + 2 * 2);
}

}  // namespace
}  // namespace meshtorch
