// A rank without elements takes part in a call whose kernels need some.
#pragma once

#include "operator/decision.h"

namespace meshtorch::internal {

// Zeros of at least one element in the place of the arguments that have none.
void lengthen_arguments(const StandIn& stand_in, c10::IValue* arguments);

// The results as they are for a rank without elements.
void empty_results(const StandIn& stand_in, c10::IValue* results, std::size_t count);

}  // namespace meshtorch::internal
