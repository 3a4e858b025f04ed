// The operator on the shards of one rank: tensors and arguments replaced, then called. No communication.
#pragma once

#include <ATen/core/stack.h>

#include "operator/decision.h"
#include "operator/operand.h"

namespace meshtorch::internal {

// Puts locals[i] in the place of operand i. Lists are made anew: the one among the arguments belongs to the
// caller.
void replace_operands(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<at::Tensor> locals,
                      c10::IValue* arguments);

// Makes the changes. Gives, for each mask, which indices are not in this rank's part; for one of writes, the
// table as it was.
std::vector<at::Tensor> change_arguments(const LocalChanges& changes, c10::IValue* arguments);

// Calls the operator on the arguments at the end of the stack, which are those of one rank, with
// the changes.
void run_local_call(const OperatorInfo& info, const LocalChanges& changes, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
