// Operators that are written by what their functional operator gives: out= variants and lists.
#pragma once

#include "operator/operator.h"

namespace meshtorch::internal {

// Runs the functional operator with the arguments on the stack, and copies its results into what is written.
void write_results(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
