// Random operators that are not defined by global index (poisson, multinomial).
#pragma once

#include "operator/operator.h"

namespace meshtorch::internal {

// Gives the call on the stack a generator of torch whose seed is drawn, so that all ranks get the same,
// whatever their number. A user's own generator is refused.
void seed_generator(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
