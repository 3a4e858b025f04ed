// What a group asks of autograd: to be told of gradients, and of the end of a backward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>

namespace meshtorch::internal {

class ParameterGroup;

// Calls group->on_gradient(index) whenever the gradient of the parameter was accumulated. Hooks that users
// set on it are called by call_user_hooks, when the gradient is that of the shard.
void call_on_gradient(const at::Tensor& parameter, const std::weak_ptr<ParameterGroup>& group,
                      std::size_t index);

void call_user_hooks(const at::Tensor& parameter);

// Whether this thread is inside a backward pass.
bool is_running_backward();
// Calls it when the backward pass that runs on this thread is done.
void at_end_of_backward(std::function<void()> call);

}  // namespace meshtorch::internal
