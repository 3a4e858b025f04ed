// Crossings between meshes: every pair of meshes of up to 4 of 4 ranks, filled once and with nothing to
// spare.
#include "redistribute/crossing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <set>

#include "simulation.h"

namespace meshtorch {
namespace {

using simulation::each_index;

struct TestMesh {
  Shape shape;
  std::vector<std::int64_t> ranks;
};

// All ordered choices of ranks out of 4, in every shape of one or two axes.
std::vector<TestMesh> all_meshes() {
  std::set<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> all{0, 1, 2, 3};
  do {
    for (std::ptrdiff_t count = 1; count <= 4; ++count) orders.emplace(all.begin(), all.begin() + count);
  } while (std::next_permutation(all.begin(), all.end()));
  std::vector<TestMesh> meshes;
  for (const auto& ranks : orders) {
    const auto size = static_cast<std::int64_t>(ranks.size());
    meshes.push_back({{size}, ranks});
    for (std::int64_t outer = 1; outer <= size; ++outer) {
      if (size % outer == 0) meshes.push_back({{outer, size / outer}, ranks});
    }
  }
  return meshes;
}

std::vector<Placements> all_placements(std::size_t axes, bool with_partial) {
  Placements one{Replicate(), Shard(0), Shard(1)};
  if (with_partial) one.push_back(Partial());
  std::vector<Placements> found;
  each_index(Shape(axes, static_cast<std::int64_t>(one.size())), [&](const Shape& choice) {
    Placements placements;
    for (const std::int64_t c : choice) placements.push_back(one[static_cast<std::size_t>(c)]);
    found.push_back(placements);
  });
  return found;
}

using Elements = std::set<Shape>;

// The global indices that a rank of the side holds.
Elements held_by(const Shape& shape, const CrossingSide& side, std::int64_t rank) {
  const auto found = std::find(side.ranks.begin(), side.ranks.end(), rank);
  if (found == side.ranks.end()) return {};
  Shape coordinate(side.mesh.size());
  auto rest = found - side.ranks.begin();
  for (std::size_t axis = side.mesh.size(); axis-- > 0;) {
    coordinate[axis] = rest % side.mesh[axis];
    rest /= side.mesh[axis];
  }
  for (std::size_t axis = 0; axis < side.mesh.size(); ++axis) {
    if (side.placements[axis].is_partial() && coordinate[axis] != 0) return {};  // zeros
  }
  Elements elements;
  each_index(shape, [&](const Shape& index) {
    bool is_held = true;
    for (std::size_t dim = 0; dim < shape.size(); ++dim) {
      bool is_in = false;
      for (const Range& r :
           held_ranges(shape[dim], static_cast<std::int64_t>(dim), side.placements, side.mesh, coordinate))
        is_in |= index[dim] >= r.begin && index[dim] < r.end();
      is_held &= is_in;
    }
    if (is_held) elements.insert(index);
  });
  return elements;
}

// What is sent is what is lacking, and everything needed comes from exactly one rank.
void expect_minimal(const Shape& shape, const CrossingSide& from, const CrossingSide& to) {
  const Crossing crossing(shape, from, to);
  std::map<std::int64_t, std::int64_t> sent;
  for (const std::int64_t receiver : crossing.ranks()) {
    const Elements needed = held_by(shape, to, receiver);
    const Elements had = held_by(shape, from, receiver);
    std::int64_t got = 0;
    std::int64_t got_from_itself = 0;
    Elements seen;  // target positions
    for (const std::int64_t sender : crossing.ranks()) {
      const std::vector<Piece> pieces = crossing.pieces(sender, receiver);
      const std::int64_t count = element_count(pieces);
      got += count;
      (sender == receiver ? got_from_itself : sent[sender]) += count;
      for (const Piece& piece : pieces) {
        each_index(simulation::sizes_of(piece.target),
                   [&](const Shape& index) { seen.insert(simulation::shifted(index, piece.target)); });
      }
    }
    Elements kept;
    std::set_intersection(needed.begin(), needed.end(), had.begin(), had.end(),
                          std::inserter(kept, kept.end()));
    ASSERT_EQ(got, static_cast<std::int64_t>(needed.size()));
    ASSERT_EQ(seen.size(), needed.size());
    ASSERT_EQ(got_from_itself, static_cast<std::int64_t>(kept.size()));
  }
  std::int64_t most = 0;
  for (const auto& [rank, count] : sent) most = std::max(most, count);
  ASSERT_EQ(crossing.most_sent(), most);
}

TEST(Crossing, EachElementIsSentOnceToEachRankThatLacksIt) {
  const std::vector<TestMesh> meshes = all_meshes();
  ASSERT_GT(meshes.size(), 150U);
  std::size_t turn = 0;
  for (const TestMesh& a : meshes) {
    for (const TestMesh& b : meshes) {
      const auto sources = all_placements(a.shape.size(), /*with_partial=*/false);
      const auto targets = all_placements(b.shape.size(), /*with_partial=*/true);
      // Each pair of meshes with one pair of placements, in turn.
      const CrossingSide from{a.shape, a.ranks, sources[turn % sources.size()]};
      const CrossingSide to{b.shape, b.ranks, targets[turn * 7 % targets.size()]};
      ++turn;
      expect_minimal({3, 2}, from, to);
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << to_string(from.placements) << " on " << ::testing::PrintToString(a.ranks) << " -> "
               << to_string(to.placements) << " on " << ::testing::PrintToString(b.ranks);
      }
    }
  }
}

TEST(Crossing, HoldersOfCopiesTakeTurns) {
  const CrossingSide from{{2}, {0, 1}, {Replicate()}};
  const CrossingSide to{{2}, {2, 3}, {Shard(0)}};
  const Crossing crossing({4}, from, to);
  EXPECT_EQ(crossing.ranks(), (std::vector<std::int64_t>{0, 1, 2, 3}));
  EXPECT_EQ(element_count(crossing.pieces(0, 2)), 2);
  EXPECT_EQ(element_count(crossing.pieces(1, 3)), 2);
  EXPECT_EQ(crossing.most_sent(), 2);
}

TEST(Crossing, OnlyTheFirstRankOfAPendingSumGetsTheValue) {
  const CrossingSide from{{2}, {0, 1}, {Shard(0)}};
  const CrossingSide to{{2, 2}, {3, 2, 1, 0}, {Partial(), Partial(ReduceOp::max)}};
  const Crossing crossing({4}, from, to);
  EXPECT_FALSE(crossing.filled_with(3));
  EXPECT_FALSE(crossing.filled_with(2));  // a maximum of equal values is the value
  EXPECT_EQ(crossing.filled_with(1), ReduceOp::sum);
  EXPECT_EQ(crossing.filled_with(0), ReduceOp::sum);
  EXPECT_EQ(element_count(crossing.pieces(0, 3)), 2);
  EXPECT_EQ(element_count(crossing.pieces(0, 1)), 0);
}

}  // namespace
}  // namespace meshtorch
