// Attention on distributed tensors without data.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

namespace meshtorch {

bool is_attention(const c10::OperatorHandle& op);

// LibTorch chooses the kernel of attention by device, and for the meta device one that multiplies matrices
// and so communicates in another way. On shards without data on a mesh of CPUs this takes the CPU's kernel in
// its place, so that counts are those of a real run. False if the call is not such a one; the stack is then
// untouched.
bool run_attention_on_shapes(const c10::OperatorHandle& op, torch::jit::Stack& stack);

}  // namespace meshtorch
