// The placements that a search for a redistribution may pass through, as compact states. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "redistribute/plan.h"

namespace meshtorch::internal {

// One byte for each mesh axis: the number of its placement among the options. A string, since it
// compares in the order of placements, hashes, and needs no allocation for up to 15 axes.
using State = std::string;

struct StateHash {
  std::size_t operator()(const State& state) const {
    std::size_t hash = 0;
    for (char option : state) hash = hash * 31 + static_cast<std::size_t>(option);
    return hash;
  }
};

// The most axes that a search takes.
inline constexpr std::size_t kMaxAxes = 12;

// A set of mesh axes, one bit each.
using AxisSet = std::uint32_t;
inline bool contains(AxisSet axes, std::size_t axis) { return ((axes >> axis) & 1U) != 0; }

class States {
 public:
  explicit States(const Problem& problem);

  std::size_t axes() const { return problem_.mesh.size(); }
  const Problem& problem() const { return problem_; }

  // The options that a state may have on `axis`, ascending: those of the problem's ends, Replicate,
  // and plain shards.
  const std::string& choices(std::size_t axis) const { return choices_[axis]; }
  const Placement& placement(char option) const { return options_[static_cast<std::size_t>(option)]; }
  const Placement& placement(const State& state, std::size_t axis) const { return placement(state[axis]); }

  State encode(const Placements& placements) const;
  Placements decode(const State& state) const;

  // The bytes of the local tensor of the rank that holds most.
  std::int64_t largest_bytes(const State& state) const;

 private:
  std::int64_t largest_size(std::size_t dim, const State& state) const;
  // A rank that has more before a strided split may have less after it, so every size that occurs
  // is followed.
  std::int64_t largest_strided_size(std::size_t dim, const State& state) const;

  const Problem& problem_;
  std::vector<Placement> options_;  // sorted
  std::vector<std::string> choices_;
};

}  // namespace meshtorch::internal
