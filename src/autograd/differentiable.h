// Functions with a backward of our own, written as two lambdas.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <vector>

namespace meshtorch::internal {

using TensorMap = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Whether a function of the tensor is recorded: else a backward need not be made.
bool is_recorded(const at::Tensor& input);

using TensorToTensor = std::function<at::Tensor(const at::Tensor&)>;

// Runs `forward` on the inputs and records `backward` as its derivative: from the gradients of all outputs
// (undefined where none came) to those of all inputs. If backward is built from differentiable functions, so
// is the result, any number of times. The name must live for ever.
std::vector<at::Tensor> differentiable(const char* name, const std::vector<at::Tensor>& inputs,
                                       const TensorMap& forward, const TensorMap& backward);

// The same for one input and one output, which is defined; backward is not called without a gradient.
at::Tensor differentiable(const char* name, const at::Tensor& input, const TensorToTensor& forward,
                          const TensorToTensor& backward);

}  // namespace meshtorch::internal
