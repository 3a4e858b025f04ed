// Whether a plain tensor may meet a distributed one.
#pragma once

#include "dispatch/handler.h"

namespace meshtorch {

// Passes if the plain operand is replicated by construction (made inside a composite operator or a backward
// formula) or the user asked for implicit replication. Else throws an error that names the operator, the
// argument and the ways out.
void check_mixing(const OperatorInfo& info, const Operand& operand);

}  // namespace meshtorch
