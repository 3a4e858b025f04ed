// Running a function that is written for plain tensors on the shards of distributed ones.
#pragma once

#include <optional>

#include "meshtorch/detail/local_map_call.h"
#include "meshtorch/dtensor.h"

namespace meshtorch {

// How local_map takes and wraps the arguments and results of a function.
template <class F>
struct LocalMapOptions {
  // How each result lies: one list of placements for a single result, else one for each; {} for what is not a
  // tensor.
  detail::PlacementsOfEach<detail::output_count<F>()> out_placements = {};
  // How each argument has to lie; {} for what is not a tensor. Default: as it does.
  std::conditional_t<detail::input_count<F>() == 1, detail::AnyPlacements,
                     detail::PlacementsOfEach<detail::input_count<F>()>>
      in_placements = {};
  // How the gradient of each argument lies, as the function's own backward leaves it. Default: like the
  // argument, and Partial where the argument is replicated along an axis on which another argument or a
  // result is not, since each rank then has its own term of it. See docs/modules.md.
  std::conditional_t<detail::input_count<F>() == 1, detail::AnyPlacements,
                     detail::PlacementsOfEach<detail::input_count<F>()>>
      in_grad_placements = {};
  // Default: that of the first distributed argument.
  std::optional<DeviceMesh> device_mesh = std::nullopt;
  // Bring arguments to in_placements, rather than refuse those that lie otherwise.
  bool redistribute_inputs = false;
  // Verify that results and gradients said to be replicated are equal on all ranks. Default: when the
  // variable MESHTORCH_DEBUG is set.
  bool check_replicated = detail::is_debug_mode();
};

// The function on distributed tensors that `fn` is on their shards. Other arguments pass through. Without any
// distributed argument, it is `fn` itself. Tensors inside tuples, vectors, optionals and structs count one by
// one, both ways.
template <class F>
auto local_map(F fn, const std::type_identity_t<LocalMapOptions<F>>& options) {
  return detail::LocalMapped<F>(std::move(fn), {options.out_placements.given, options.in_placements.given,
                                                options.in_grad_placements.given, options.device_mesh,
                                                options.redistribute_inputs, options.check_replicated});
}

}  // namespace meshtorch
