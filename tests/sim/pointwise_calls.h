// Calls of the pointwise operators, made from their rules and schemas: a family needs no samples by hand.
#pragma once

#include "../dist/call.h"

namespace meshtorch::testing {

// For every rule whose operands are all `...`: calls on tensors of one shape and of shapes that broadcast, of
// each type that the operator takes.
std::vector<Call> pointwise_calls();

}  // namespace meshtorch::testing
