// From a decomposition back to the same operator: to its rule, or to what LibTorch makes of it.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>

#include "dispatch/composite.h"
#include "dispatch/handler.h"

namespace meshtorch::internal {

using BoxedCall = void(const c10::OperatorHandle& op, torch::jit::Stack* stack);

// A boxed function with the signature of the operator that `Op` describes.
template <BoxedCall boxed, typename Op, typename Schema = typename Op::schema>
struct Typed;

template <BoxedCall boxed, typename Op, typename Result, typename... Arguments>
struct Typed<boxed, Op, Result(Arguments...)> {
  static Result call(Arguments... arguments) {
    static const c10::OperatorHandle op =
        c10::Dispatcher::singleton().findSchemaOrThrow(Op::name, Op::overload_name);
    static const auto kernel = c10::KernelFunction::makeFromBoxedFunction<boxed>();
    return kernel.template call<Result, Arguments...>(op, c10::DispatchKeySet(),
                                                      std::forward<Arguments>(arguments)...);
  }
};

// The operator by its rule, or replicated if that does not fit.
template <typename Op, typename... Given>
decltype(auto) by_rule(Given&&... arguments) {
  return Typed<run_rule, Op>::call(std::forward<Given>(arguments)...);
}

// A composite operator as LibTorch decomposes it.
template <typename Op, typename... Given>
decltype(auto) as_composite(Given&&... arguments) {
  return Typed<run_as_composite, Op>::call(std::forward<Given>(arguments)...);
}

}  // namespace meshtorch::internal
