// Views of distributed tensors. Where a view cannot share the memory of what it was taken of, writes to it are carried back.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include "dispatch/decision.h"
#include "tensor/meta.h"

namespace meshtorch {

struct WriteBack {
  at::Tensor base;
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // of the view operator
  std::size_t result;           // which of its results the view is
};

// Wraps a result of a view operator.
at::Tensor wrap_view(at::Tensor local, const ResultPlan& plan, const at::Tensor& base, const c10::OperatorHandle& op,
                     const torch::jit::Stack& arguments, std::size_t result);

// Carries what was written to `view` back to the tensor that it is a view of. All ranks of the mesh must call it.
void write_through(const at::Tensor& view);

}  // namespace meshtorch
