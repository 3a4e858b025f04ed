// Exact search for the cheapest sequence of moves. No torch.
#pragma once

#include "redistribute/moves.h"

namespace meshtorch::internal {

// The steps of the cheapest way from problem.from to problem.to. No axis may have extent 1.
std::vector<Step> cheapest_steps(const Problem& problem, SearchStats& stats);

}  // namespace meshtorch::internal
