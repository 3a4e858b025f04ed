// Calls on tensors of several meshes: the step before the handler's own, which is about one mesh.
#pragma once

#include <ATen/core/stack.h>

#include "operator/operator.h"

namespace meshtorch::internal {

// Of operators that treat each element of their lists by itself: runs the call on top of the stack once for
// each mesh, and once for what is plain, with the elements of each. False, and nothing done, if all lie on
// one mesh, or the call is no such call.
bool run_by_meshes(const OperatorInfo& info, torch::jit::Stack& stack);

// Runs a call that reads numbers, tensors without dims, from other meshes than the one of its other tensors:
// the norms of gradients on a flattened mesh and on the 2-D one, or a factor for all gradients. They become
// plain, with one collective a mesh. What lies on some axes of a mesh only counts as equal along the others.
// False, and nothing done, if there are no such numbers, if their meshes have other ranks, or if the call is
// to be differentiated by them.
bool run_on_numbers(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
