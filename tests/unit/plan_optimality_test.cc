// Proof that plans are cheapest: against all sequences of three moves, judged index by index.
#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <limits>
#include <set>

#include "redistribute/plan.h"
#include "short_placements.h"

namespace meshtorch {
using namespace internal;
namespace {

// Every move between every two states, judged index by index on every rank.
class BruteForce {
 public:
  BruteForce(Shape shape, Shape mesh, std::vector<AxisCost> costs)
      : shape_(std::move(shape)), mesh_(std::move(mesh)), costs_(std::move(costs)) {
    for (std::int64_t i = 0; i < mesh_[0]; ++i) {
      for (std::int64_t j = 0; j < mesh_[1]; ++j) coordinates_.push_back({i, j});
    }
    for (const Placement& a : options()) {
      for (const Placement& b : options()) states_.push_back({a, b});
    }
    for (const Placements& before : states_) {
      edges_.emplace_back();
      for (const Placements& after : states_) edges_.back().push_back(cheapest_move(before, after));
    }
  }

  static Placements options() { return {R, S0, S1, StridedShard(0, 2), P, PMax}; }
  const std::vector<Placements>& states() const { return states_; }

  // The least seconds of at most `steps` moves, through the intermediate states that the planner
  // considers.
  double best(const Placements& from, const Placements& to, int steps) const {
    std::vector<double> least(states_.size(), kNever);
    least[number(from)] = 0;
    for (int step = 0; step < steps; ++step) {
      std::vector<double> next = least;
      for (std::size_t s = 0; s < states_.size(); ++s) {
        for (std::size_t t = 0; t < states_.size(); ++t) {
          if (considered(states_[t], from, to)) next[t] = std::min(next[t], least[s] + edges_[s][t]);
        }
      }
      least = next;
    }
    return least[number(to)];
  }

  static constexpr double kNever = std::numeric_limits<double>::infinity();

 private:
  using Indices = std::set<Shape>;

  bool considered(const Placements& state, const Placements& from, const Placements& to) const {
    const auto splits = [](const Placements& ps, std::int64_t dim) {
      return ps[0].is_shard(dim) || ps[1].is_shard(dim);
    };
    const auto splittable = [&](const Placement& p) {
      const auto dim = p.dim();
      return (p == S0 || p == S1) &&
             (shape_[static_cast<std::size_t>(dim)] > 1 || splits(from, dim) || splits(to, dim));
    };
    for (std::size_t a = 0; a < 2; ++a) {
      if (state[a] != R && state[a] != from[a] && state[a] != to[a] && !splittable(state[a])) return false;
    }
    return true;
  }

  std::size_t number(const Placements& state) const {
    return static_cast<std::size_t>(std::find(states_.begin(), states_.end(), state) - states_.begin());
  }

  Indices held(const Placements& placements, const Shape& c) const {
    Indices indices;
    for (const Range& rows : held_ranges(shape_[0], 0, placements, mesh_, c)) {
      for (const Range& columns : held_ranges(shape_[1], 1, placements, mesh_, c)) {
        for (std::int64_t i = rows.begin; i < rows.end(); ++i) {
          for (std::int64_t j = columns.begin; j < columns.end(); ++j) indices.insert({i, j});
        }
      }
    }
    return indices;
  }

  double largest(const Placements& placements) const {
    std::size_t most = 0;
    for (const Shape& c : coordinates_) most = std::max(most, held(placements, c).size());
    return 4.0 * static_cast<double>(most);
  }

  bool covered(const Placements& before, const Placements& after, unsigned group) const {
    for (const Shape& c : coordinates_) {
      Indices found;
      for (const Shape& m : coordinates_) {
        const bool is_member = ((group & 1) != 0 || m[0] == c[0]) && ((group & 2) != 0 || m[1] == c[1]);
        if (is_member) found.merge(held(before, m));
      }
      const Indices needed = held(after, c);
      if (!std::includes(found.begin(), found.end(), needed.begin(), needed.end())) return false;
    }
    return true;
  }

  double cheapest_move(const Placements& before, const Placements& after) const {
    if (before == after) return kNever;
    const unsigned differ = (before[0] != after[0] ? 1U : 0U) | (before[1] != after[1] ? 2U : 0U);
    double least = kNever;
    for (unsigned group : {1U, 2U, 3U}) {
      if ((group & differ) == differ) least = std::min(least, price(before, after, group));
    }
    return least;
  }

  double price(const Placements& before, const Placements& after, unsigned group) const {
    double members = 1, copies = 1, latency = 0, per_byte = 0;
    int gathers = 0, exchanges = 0, cuts = 0, spreads = 0, reduces = 0, scatters = 0;
    std::set<ReduceOp> ops;
    for (std::size_t a = 0; a < 2; ++a) {
      if ((group >> a & 1) == 0) continue;
      const Placement &b = before[a], &f = after[a];
      members *= static_cast<double>(mesh_[a]);
      if (f == R) copies *= static_cast<double>(mesh_[a]);
      latency = std::max(latency, costs_[a].latency_s);
      per_byte = std::max(per_byte, costs_[a].seconds_per_byte);
      if (b.is_partial()) ops.insert(b.reduce_op());
      if (f.is_partial()) ops.insert(f.reduce_op());
      if ((b == R && f == R) || (b.is_partial() && f.is_partial()) || (b.is_shard() && f.is_partial()))
        return kNever;
      ++(b.is_partial() ? (f == R ? reduces : scatters)
         : b == R       ? (f.is_shard() ? cuts : spreads)
         : f == R       ? gathers
                        : exchanges);
    }
    const int all = gathers + exchanges + cuts + spreads + reduces + scatters;
    const bool later_differs =
        group == 1 && before[1].is_partial() && !ops.empty() && before[1].reduce_op() != *ops.begin();
    const auto over_wire = [&](double bytes, double padded = 0) {
      return latency + std::max(bytes - std::floor(bytes / members), (members - 1) * padded) * per_byte;
    };
    if (ops.size() > 1) return kNever;
    if (spreads == all) return largest(after) * 1e-10;
    if (cuts == all) return covered(before, after, 0) ? largest(after) * 1e-10 : kNever;
    if (!covered(before, after, group)) return kNever;
    if (gathers == all) return over_wire(largest(after), largest(before));
    if (gathers + exchanges == all || exchanges + cuts == all) {
      return over_wire(std::max(copies * largest(before), largest(after)));
    }
    if (later_differs) return kNever;
    if (reduces == all) return 2 * over_wire(largest(before)) - latency;
    return scatters == all ? over_wire(largest(before), largest(after)) : kNever;
  }

  Shape shape_, mesh_;
  std::vector<AxisCost> costs_;
  std::vector<Shape> coordinates_;
  std::vector<Placements> states_;
  std::vector<std::vector<double>> edges_;
};

struct Setting {
  const char* name;
  Shape shape, mesh;
  std::vector<AxisCost> costs;
};

class PlanOptimality : public ::testing::TestWithParam<Setting> {};

TEST_P(PlanOptimality, NoSequenceOfThreeMovesIsCheaper) {
  const auto& [name, shape, mesh, costs] = GetParam();
  const BruteForce brute(shape, mesh, costs);
  for (const Placements& from : brute.states()) {
    for (const Placements& to : brute.states()) {
      const Plan plan = plan_redistribute({shape, 4, mesh, from, to, costs});
      const double best = brute.best(from, to, 3);
      const double tolerance = 1e-11 + best * 1e-9;
      ASSERT_LE(plan.seconds, best + tolerance) << plan.to_string();
      if (plan.steps.size() <= 3) {
        ASSERT_NEAR(plan.seconds, best, tolerance) << plan.to_string();
      }
    }
  }
}

INSTANTIATE_TEST_SUITE_P(
    Small, PlanOptimality,
    ::testing::Values(Setting{"EvenEqualAxes", {4, 4}, {2, 2}, {{1e-5, 1e-9}, {1e-5, 1e-9}}},
                      Setting{"EvenSlowAxis0", {6, 12}, {2, 3}, {{1e-7, 1e-7}, {1e-7, 1e-8}}},
                      Setting{"UnevenFarAxis1", {5, 3}, {3, 2}, {{1e-8, 1e-8}, {1e-6, 1e-9}}},
                      Setting{"SizeOneDim", {1, 7}, {2, 3}, {{1e-7, 1e-6}, {1e-8, 1e-6}}}),
    [](const auto& test) { return std::string(test.param.name); });

}  // namespace
}  // namespace meshtorch
