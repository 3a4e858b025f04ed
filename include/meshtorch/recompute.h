// Activation checkpointing: less memory for one more forward pass.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <type_traits>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch {

// A function of tensors that recompute runs twice.
using TensorFunction = std::function<std::vector<at::Tensor>(const std::vector<at::Tensor>& inputs)>;

// fn(inputs), of which nothing is kept but the inputs: backward runs fn again, with the same random numbers,
// before it goes through it. What fn uses beside the inputs, such as the parameters of a module, gets its
// gradients too. Other ranks must make the same calls.
MESHTORCH_API std::vector<at::Tensor> recompute(const TensorFunction& fn,
                                                const std::vector<at::Tensor>& inputs);

// The same for a function of tensors that gives one: recompute([&](at::Tensor x) { return block(x); }, x).
template <class F, class... Inputs>
  requires std::is_invocable_r_v<at::Tensor, F&, const Inputs&...>
at::Tensor recompute(F fn, const Inputs&... inputs) {
  const TensorFunction of_list = [fn = std::move(fn)](const std::vector<at::Tensor>& list) mutable {
    return [&]<std::size_t... I>(std::index_sequence<I...>) {
      return std::vector<at::Tensor>{fn(list[I]...)};
    }(std::index_sequence_for<Inputs...>());
  };
  return recompute(of_list, std::vector<at::Tensor>{inputs...})[0];
}

}  // namespace meshtorch
