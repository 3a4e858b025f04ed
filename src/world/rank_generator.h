// LibTorch's default generator on ranks: those that are threads have one of their own each, as a process has,
// and its state also says where the numbers of distributed tensors stand.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/library.h>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// From the first call on, LibTorch's default CPU generator stands for that of the calling rank, where the
// rank is a thread, and for that of the process everywhere else: seeds and states go there. Its states hold
// those of distributed tensors too (RngState), so that whoever restores one, as checkpointing does, restores
// both.
MESHTORCH_FOR_PYTHON void share_default_generator();

// Makes plain random operators of the calling thread draw from its rank's generator, or no more.
void use_rank_generator(bool is_rank);

// Registers what gives operators with an optional generator that of the calling rank. Operators without one
// among their arguments call those with one.
void add_random_kernels(torch::Library& thread_rank_key);

// A generator in the state of the calling thread's default one.
at::Generator copy_of_default_generator();

}  // namespace meshtorch::internal
