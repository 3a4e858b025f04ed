// Functions with a backward of our own, written as two lambdas.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <functional>
#include <vector>

namespace meshtorch::internal {

using TensorMap = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>&)>;

// Whether a function of the tensor is recorded: else a backward need not be made.
bool is_recorded(const at::Tensor& input);

// What a backward holds of the values of its forward. One that holds tensors gives them up when autograd
// frees the graph, and can not run after that; one that holds none can run as often as a graph reaches it.
enum class Holds : std::uint8_t { nothing, tensors };

using TensorToTensor = std::function<at::Tensor(const at::Tensor&)>;

// Runs `forward` on the inputs and records `backward` as its derivative: from the gradients of all outputs
// (undefined where none came) to those of all inputs. If backward is built from differentiable functions, so
// is the result, any number of times. The name must live for ever.
std::vector<at::Tensor> differentiable(const char* name, const std::vector<at::Tensor>& inputs,
                                       const TensorMap& forward, const TensorMap& backward,
                                       Holds holds = Holds::nothing);

// The same for one input and one output, which is defined; backward is not called without a gradient.
at::Tensor differentiable(const char* name, const at::Tensor& input, const TensorToTensor& forward,
                          const TensorToTensor& backward, Holds holds = Holds::nothing);

}  // namespace meshtorch::internal
