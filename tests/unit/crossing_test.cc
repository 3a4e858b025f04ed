// Crossings between meshes: every pair of meshes of up to 4 of 4 ranks, filled once and with nothing to
// spare.
#include "redistribute/crossing.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <array>
#include <bitset>
#include <numeric>
#include <set>

#include "simulation.h"

namespace meshtorch {
using namespace internal;
namespace {

using simulation::each_index;

struct TestMesh {
  Shape shape;
  std::vector<std::int64_t> ranks;
};

// Every shape of one or two axes for so many ranks.
std::vector<Shape> shapes_for(std::int64_t size) {
  std::vector<Shape> shapes{{size}};
  for (std::int64_t outer = 1; outer <= size; ++outer) {
    if (size % outer == 0) shapes.push_back({outer, size / outer});
  }
  return shapes;
}

// All ordered choices of ranks out of 4, in every shape.
std::vector<TestMesh> all_meshes() {
  std::set<std::vector<std::int64_t>> orders;
  std::vector<std::int64_t> all{0, 1, 2, 3};
  do {
    for (std::ptrdiff_t count = 1; count <= 4; ++count) orders.emplace(all.begin(), all.begin() + count);
  } while (std::next_permutation(all.begin(), all.end()));
  std::vector<TestMesh> meshes;
  for (const auto& ranks : orders) {
    for (const Shape& shape : shapes_for(static_cast<std::int64_t>(ranks.size())))
      meshes.push_back({shape, ranks});
  }
  return meshes;
}

// The first ranks in their order, in every shape: a crossing knows ranks by their places in the meshes only,
// so that for each pair of meshes there is one of these and one of all_meshes() that differ from it in names.
std::vector<TestMesh> meshes_in_order() {
  std::vector<TestMesh> meshes;
  for (std::int64_t size = 1; size <= 4; ++size) {
    std::vector<std::int64_t> ranks(static_cast<std::size_t>(size));
    std::iota(ranks.begin(), ranks.end(), 0);
    for (const Shape& shape : shapes_for(size)) meshes.push_back({shape, ranks});
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

// Each mesh with each of its placements.
std::vector<CrossingSide> sides_of(const std::vector<TestMesh>& meshes, bool with_partial) {
  std::vector<CrossingSide> sides;
  for (const TestMesh& mesh : meshes) {
    for (const Placements& placements : all_placements(mesh.shape.size(), with_partial))
      sides.push_back({mesh.shape, mesh.ranks, placements});
  }
  return sides;
}

const Shape kShape{3, 2};

// A set of elements of the tensor.
using Elements = std::bitset<6>;
std::size_t place(const Shape& index) { return static_cast<std::size_t>(index[0] * kShape[1] + index[1]); }

// What each of 4 ranks holds.
std::array<Elements, 4> held_on(const CrossingSide& side) {
  std::array<Elements, 4> all;
  for (std::size_t i = 0; i < side.ranks.size(); ++i) {
    Shape coordinate(side.mesh.size());
    auto rest = static_cast<std::int64_t>(i);
    bool has_value = true;
    for (std::size_t axis = side.mesh.size(); axis-- > 0; rest /= side.mesh[axis])
      coordinate[axis] = rest % side.mesh[axis];
    for (std::size_t axis = 0; axis < side.mesh.size(); ++axis)
      has_value &= !side.placements[axis].is_partial() || coordinate[axis] == 0;  // else zeros
    if (!has_value) continue;
    std::array<std::vector<bool>, 2> is_held;
    for (std::size_t dim = 0; dim < 2; ++dim) {
      is_held[dim].resize(static_cast<std::size_t>(kShape[dim]));
      for (const Range& r :
           held_ranges(kShape[dim], static_cast<std::int64_t>(dim), side.placements, side.mesh, coordinate)) {
        for (std::int64_t j = r.begin; j < r.end(); ++j) is_held[dim][static_cast<std::size_t>(j)] = true;
      }
    }
    each_index(kShape, [&](const Shape& index) {
      const bool here =
          is_held[0][static_cast<std::size_t>(index[0])] && is_held[1][static_cast<std::size_t>(index[1])];
      all[static_cast<std::size_t>(side.ranks[i])][place(index)] = here;
    });
  }
  return all;
}

// What is sent is what is lacking, and everything needed comes from exactly one rank.
void expect_minimal(const CrossingSide& from, const std::array<Elements, 4>& had, const CrossingSide& to,
                    const std::array<Elements, 4>& needed) {
  const Crossing crossing(kShape, from, to);
  std::array<std::int64_t, 4> sent{};
  for (const std::int64_t receiver : crossing.ranks()) {
    const auto r = static_cast<std::size_t>(receiver);
    std::int64_t got = 0;
    std::int64_t got_from_itself = 0;
    std::set<Shape> seen;  // target positions
    for (const std::int64_t sender : crossing.ranks()) {
      const std::vector<Piece> pieces = crossing.pieces(sender, receiver);
      const std::int64_t count = element_count(pieces);
      got += count;
      (sender == receiver ? got_from_itself : sent[static_cast<std::size_t>(sender)]) += count;
      for (const Piece& piece : pieces) {
        each_index(simulation::sizes_of(piece.target),
                   [&](const Shape& index) { seen.insert(simulation::shifted(index, piece.target)); });
      }
    }
    ASSERT_EQ(got, static_cast<std::int64_t>(needed[r].count()));
    ASSERT_EQ(seen.size(), needed[r].count());
    ASSERT_EQ(got_from_itself, static_cast<std::int64_t>((needed[r] & had[r]).count()));
  }
  ASSERT_EQ(crossing.most_sent(), *std::max_element(sent.begin(), sent.end()));
}

TEST(Crossing, EachElementIsSentOnceToEachRankThatLacksIt) {
  const std::vector<CrossingSide> sources = sides_of(meshes_in_order(), /*with_partial=*/false);
  const std::vector<CrossingSide> targets = sides_of(all_meshes(), /*with_partial=*/true);
  ASSERT_GT(sources.size() * targets.size(), 200'000U);
  std::vector<std::array<Elements, 4>> needed;
  for (const CrossingSide& to : targets) needed.push_back(held_on(to));
  for (const CrossingSide& from : sources) {
    const auto had = held_on(from);
    for (std::size_t i = 0; i < targets.size(); ++i) {
      expect_minimal(from, had, targets[i], needed[i]);
      if (::testing::Test::HasFatalFailure()) {
        FAIL() << to_string(from.placements) << " on " << ::testing::PrintToString(from.ranks) << " -> "
               << to_string(targets[i].placements) << " on " << ::testing::PrintToString(targets[i].ranks);
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
