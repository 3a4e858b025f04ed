// Composite operators that LibTorch cannot decompose on distributed tensors, since they look into memory.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <memory>

namespace meshtorch::internal {

class MeshImpl;

// True if the error says that a decomposition asked for the memory of a distributed tensor, which has none of
// its global shape. Nothing was sent that another rank still waits for: all ranks get here.
bool needs_memory(const std::exception& error);

// Runs the operator on the whole tensors, on every rank, and gives plain results, through which gradients
// flow. The arguments lie on top of the stack; plain ones are equal on all ranks.
void run_on_whole(const c10::OperatorHandle& op, torch::jit::Stack& stack);

// Makes the results that are plain distributed: what a composite operator made itself is equal on all ranks.
void distribute_results(const c10::OperatorHandle& op, const std::shared_ptr<MeshImpl>& mesh,
                        torch::jit::Stack& stack);

}  // namespace meshtorch::internal
