// Everything that a rule claims to be right for one call: each choice that some situation could lead to.
#pragma once

#include <vector>

#include "propagate/choose.h"

namespace meshtorch::internal {

// One choice for every sequence of feasible options, axis by axis. The elements of a paired rule take their
// choices side by side, so that each choice of each element is in one at least.
std::vector<Choice> claims(const BoundRule& bound, ReduceOp contracted, const Shape& mesh);

}  // namespace meshtorch::internal
