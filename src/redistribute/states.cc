// States: which placements a search considers, and how much a rank holds under them.
#include "redistribute/states.h"

#include <algorithm>
#include <set>

namespace meshtorch::internal {
namespace {

// With more than this, the dims of intermediate shards are limited to those in use and the largest
// other one.
constexpr std::size_t kAllDimsUpToRank = 4;
constexpr std::size_t kAllDimsUpToAxes = 3;

// The dims that an intermediate state may split.
std::set<std::int64_t> dims_to_split(const Problem& problem) {
  std::set<std::int64_t> dims;
  for (const Placements* ends : {&problem.from, &problem.to}) {
    for (const Placement& p : *ends) {
      if (p.is_shard()) dims.insert(p.dim());
    }
  }
  const bool take_all = problem.shape.size() <= kAllDimsUpToRank && problem.mesh.size() <= kAllDimsUpToAxes;
  std::int64_t largest = -1;
  for (std::size_t i = 0; i < problem.shape.size(); ++i) {
    const auto dim = static_cast<std::int64_t>(i);
    if (problem.shape[i] < 2 || dims.contains(dim)) continue;
    if (take_all) {
      dims.insert(dim);
    } else if (largest < 0 || problem.shape[i] > problem.shape[static_cast<std::size_t>(largest)]) {
      largest = dim;
    }
  }
  if (largest >= 0) dims.insert(largest);
  return dims;
}

// The size that each rank of an axis keeps of a sequence of `size`, each different size once.
void add_sizes(std::set<std::int64_t>& sizes, std::int64_t size, const Placement& p, std::int64_t extent) {
  for (std::int64_t index = 0; index < extent; ++index) {
    std::int64_t kept = 0;
    for (std::int64_t piece = 0; piece < p.split_factor(); ++piece) {
      kept += chunk(chunk(size, p.split_factor(), piece).size, extent, index).size;
    }
    sizes.insert(kept);
  }
}

}  // namespace

States::States(const Problem& problem) : problem_(problem) {
  std::vector<std::set<Placement>> allowed(axes());
  std::set<Placement> all;
  const std::set<std::int64_t> dims = dims_to_split(problem);
  for (std::size_t axis = 0; axis < axes(); ++axis) {
    allowed[axis] = {Replicate(), problem.from[axis], problem.to[axis]};
    for (std::int64_t dim : dims) allowed[axis].insert(Shard(dim));
    all.insert(allowed[axis].begin(), allowed[axis].end());
  }
  options_.assign(all.begin(), all.end());
  for (const std::set<Placement>& placements : allowed) {
    choices_.push_back(encode({placements.begin(), placements.end()}));
  }
}

State States::encode(const Placements& placements) const {
  State state;
  for (const Placement& p : placements) {
    const auto found = std::lower_bound(options_.begin(), options_.end(), p);
    state.push_back(static_cast<char>(found - options_.begin()));
  }
  return state;
}

Placements States::decode(const State& state) const {
  Placements placements;
  for (char option : state) placements.push_back(placement(option));
  return placements;
}

std::int64_t States::largest_bytes(const State& state) const {
  std::int64_t bytes = problem_.item_size;
  for (std::size_t dim = 0; dim < problem_.shape.size(); ++dim) bytes *= largest_size(dim, state);
  return bytes;
}

std::int64_t States::largest_size(std::size_t dim, const State& state) const {
  std::int64_t first = problem_.shape[dim];  // of the rank at index 0 of every axis
  bool strided = false;
  for (std::size_t axis = 0; axis < axes(); ++axis) {
    const Placement& p = placement(state, axis);
    if (!p.is_shard(static_cast<std::int64_t>(dim))) continue;
    strided = strided || p.split_factor() > 1;
    first = chunk(first, problem_.mesh[axis], 0).size;
  }
  return strided ? largest_strided_size(dim, state) : first;
}

std::int64_t States::largest_strided_size(std::size_t dim, const State& state) const {
  std::set<std::int64_t> sizes{problem_.shape[dim]};
  for (std::size_t axis = 0; axis < axes(); ++axis) {
    const Placement& p = placement(state, axis);
    if (!p.is_shard(static_cast<std::int64_t>(dim))) continue;
    std::set<std::int64_t> kept;
    for (std::int64_t size : sizes) add_sizes(kept, size, p, problem_.mesh[axis]);
    sizes = std::move(kept);
  }
  return *sizes.rbegin();
}

}  // namespace meshtorch::internal
