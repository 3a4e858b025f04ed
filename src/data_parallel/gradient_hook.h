// What a group asks of autograd: to be told of gradients, and of the end of a backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace meshtorch {

class ParameterGroup;

// Calls group->on_gradient(index) whenever the gradient of the parameter was accumulated, after a hook that
// the parameter has already.
void call_on_gradient(const at::Tensor& parameter, const std::weak_ptr<ParameterGroup>& group,
                      std::size_t index);

// Whether this thread is inside a backward pass.
bool is_running_backward();
// Calls it when the backward pass that runs on this thread is done.
void at_end_of_backward(std::function<void()> call);

}  // namespace meshtorch
