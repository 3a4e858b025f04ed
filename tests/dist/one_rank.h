// What a random call gives on one rank, computed by every rank by itself.
#pragma once

#include "numbers.h"

namespace meshtorch::testing {

// The mesh that holds the calling rank only.
inline mt::DeviceMesh alone() { return {torch::kCPU, std::vector<int64_t>{mt::get_rank()}}; }

// Runs `make` on a mesh of one rank, with the random numbers that follow `state`, and leaves those of the
// rank as they were.
inline torch::Tensor on_one_rank(
    const mt::RngState& state,
    const std::function<torch::Tensor(const mt::DeviceMesh&, const mt::Placements&)>& make) {
  const mt::RngState before = mt::get_rng_state();
  mt::set_rng_state(state);
  const torch::Tensor whole = mt::DTensor(make(alone(), {mt::Replicate()})).to_local();
  mt::set_rng_state(before);
  return whole;
}

}  // namespace meshtorch::testing
