// feature_dropout and feature_alpha_dropout on distributed tensors: their noise is distributed too.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace meshtorch {

// LibTorch makes the noise of these operators as a plain tensor, from each rank's own generator, so that they
// cannot be decomposed.
bool is_feature_dropout(const c10::OperatorHandle& op);

// Above autograd: puts the result in the place of the arguments. False, with nothing done, if the call drops
// nothing at random.
bool run_feature_dropout(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace meshtorch
