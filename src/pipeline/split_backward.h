// Backward in two halves: first the gradients of a stage's inputs, later those of its parameters.
#pragma once

#include <ATen/core/Tensor.h>
#include <torch/csrc/autograd/function.h>

#include <vector>

namespace meshtorch::internal {

using GraphEdges = std::vector<torch::autograd::Edge>;

// Where backward starts, and with which gradients.
struct BackwardStart {
  GraphEdges edges;
  std::vector<at::Tensor> gradients;
};

struct InputGradients {
  std::vector<at::Tensor> gradients;  // undefined for inputs that need none or that were not used
  BackwardStart parameters;           // where the second half starts
};

// Both halves: adds the gradients of all leaves that the graph leads to.
void run_backward(const BackwardStart& start);

// The first half. The graph is cut: what only leads to inputs is freed, what leads to parameters is kept with
// the gradients that came to it. Nothing is computed twice by the second half, run_backward(parameters). A
// graph can be cut once. The inputs must be leaves.
InputGradients run_input_backward(const BackwardStart& start, const std::vector<at::Tensor>& inputs);

}  // namespace meshtorch::internal
