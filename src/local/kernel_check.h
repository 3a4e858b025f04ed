// What a kernel refuses, on a rank whose parts have no elements.
#pragma once

#include "operator/decision.h"
#include "operator/operand.h"

namespace meshtorch::internal {

// Kernels that do not know a type, or do not write to what is repeated in memory, say so where there are
// elements only. A rank without any asks them with zeros, so that all ranks refuse alike. `arguments` are
// those of the call, with locals[i] to be in the place of operand i.
void check_kernel(const OperatorInfo& info, const Operands& operands, const LocalChanges& changes,
                  c10::ArrayRef<at::Tensor> locals, c10::ArrayRef<c10::IValue> arguments);

}  // namespace meshtorch::internal
