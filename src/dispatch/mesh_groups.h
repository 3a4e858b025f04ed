// Operators that treat each element of their lists by itself, on tensors of several meshes: the step before
// the handler's own, which is about one mesh.
#pragma once

#include <ATen/core/stack.h>

#include "operator/operator.h"

namespace meshtorch::internal {

// Runs the call on top of the stack once for each mesh, and once for what is plain, with the elements of
// each. False, and nothing done, if all lie on one mesh, or the call is no such call.
bool run_by_meshes(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
