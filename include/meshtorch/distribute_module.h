// Turning the parameters of a module into distributed tensors, in place.
#pragma once

#include <functional>
#include <string>
#include <type_traits>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/module_hooks.h"

namespace meshtorch {

// Distributes the parameters of one module; called for the module itself, whose name is empty, and for every
// module below it.
using PartitionFn =
    std::function<void(const std::string& name, torch::nn::Module& module, const DeviceMesh& mesh)>;

// What is done at the edge of a module, with its inputs before forward or its outputs after. Made of any
// callable that takes (module, values, mesh) and changes the values in place, or returns the new first value,
// or the new values as a vector of tensors. A callable without the first argument is taken too, with a
// warning.
class EdgeFn {
 public:
  EdgeFn() = default;
  EdgeFn(std::nullptr_t) {}

  template <class F>
    requires std::is_invocable_v<F&, torch::nn::Module&, Values&, const DeviceMesh&>
  EdgeFn(F fn)
      : fn_([fn = std::move(fn)](torch::nn::Module& module, Values& values, const DeviceMesh& mesh) mutable {
          apply([&]() -> decltype(auto) { return fn(module, values, mesh); }, values);
        }) {}

  template <class F>
    requires(std::is_invocable_v<F&, Values&, const DeviceMesh&> &&
             !std::is_invocable_v<F&, torch::nn::Module&, Values&, const DeviceMesh&>)
  EdgeFn(F fn)
      : fn_([fn = std::move(fn)](torch::nn::Module&, Values& values, const DeviceMesh& mesh) mutable {
          apply([&]() -> decltype(auto) { return fn(values, mesh); }, values);
        }),
        takes_module_(false) {}

  explicit operator bool() const { return static_cast<bool>(fn_); }
  bool takes_module() const { return takes_module_; }
  void operator()(torch::nn::Module& module, Values& values, const DeviceMesh& mesh) const {
    fn_(module, values, mesh);
  }

 private:
  template <class Call>
  static void apply(Call call, Values& values) {
    using Result = std::remove_cvref_t<std::invoke_result_t<Call>>;
    if constexpr (std::is_base_of_v<at::Tensor, Result>) {
      values[0] = call();
    } else if constexpr (std::is_same_v<Result, std::vector<at::Tensor>>) {
      const std::vector<at::Tensor> replaced = call();
      for (std::size_t i = 0; i < replaced.size(); ++i) values[i] = replaced[i];
    } else {
      static_assert(std::is_void_v<Result>,
                    "input_fn and output_fn return nothing, a tensor, or a vector of tensors");
      call();
    }
  }

  std::function<void(torch::nn::Module&, Values&, const DeviceMesh&)> fn_;
  bool takes_module_ = true;
};

// Lets partition_fn distribute the parameters (default: none), makes all parameters and buffers that it left
// alone replicated, and registers the functions at the module's edge. Parameters change in place, so that
// members of the module and optimizers see them; a leaf stays a leaf. A second call on the same module is an
// error. Returns the module.
MESHTORCH_API torch::nn::Module& distribute_module(torch::nn::Module& module, const DeviceMesh& mesh,
                                                   const PartitionFn& partition_fn = {}, EdgeFn input_fn = {},
                                                   EdgeFn output_fn = {});

// Gives a parameter or buffer other data, on another device if need be: what a partition_fn does. The tensor
// stays the same object.
MESHTORCH_API void replace_data(const at::Tensor& parameter, const at::Tensor& data);

// Splits a parameter of a module in place: it stays the same leaf, and whatever holds it sees it distributed.
// A gradient that it has is split alike.
MESHTORCH_API void distribute_parameter(at::Tensor& parameter, const DeviceMesh& mesh,
                                        const Placements& placements, const DistributeOptions& options = {});

}  // namespace meshtorch
