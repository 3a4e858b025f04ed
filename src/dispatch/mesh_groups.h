// Calls on tensors of several meshes: the step before the handler's own, which is about one mesh.
#pragma once

#include <ATen/core/stack.h>

#include "operator/operator.h"

namespace meshtorch::internal {

// Of operators that treat each element of their lists by itself: runs the call on top of the stack once for
// each mesh, and once for what is plain, with the elements of each. False, and nothing done, if all lie on
// one mesh, or the call is no such call.
bool run_by_meshes(const OperatorInfo& info, torch::jit::Stack& stack);

// Of numbers, tensors without dims, on meshes that were cut from one, such as the norms of gradients on "dp"
// and on "dp" and "tp": every rank is in each of the meshes, so that it can have all numbers, with one
// collective a mesh, and the call runs on them as plain ones. What lies on some of the axes only counts as
// equal along the others. False, and nothing done, if the call has other distributed tensors, writes to one
// of them, or is to be differentiated.
bool run_on_numbers(const OperatorInfo& info, torch::jit::Stack& stack);

}  // namespace meshtorch::internal
