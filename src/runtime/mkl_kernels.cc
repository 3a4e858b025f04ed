// The first use of every vector function that LibTorch takes from MKL, in both types.
#include "runtime/mkl_kernels.h"

#include <ATen/ATen.h>
#include <ATen/core/grad_mode.h>

#include <mutex>

#include "runtime/host_tensor.h"

namespace meshtorch::internal {
namespace {

void use_all(at::ScalarType type) {
  using Function = at::Tensor (*)(const at::Tensor&);
  constexpr Function kFunctions[] = {at::acos,   at::asin, at::atan, at::cos,   at::erf,  at::erfc,
                                     at::erfinv, at::exp,  at::log,  at::log10, at::log2, at::sin,
                                     at::sqrt,   at::tan,  at::tanh, at::trunc};
  const at::Tensor numbers = at::full({32}, 0.5, on_host(type));
  for (const Function function : kFunctions) function(numbers);
}

}  // namespace

void warm_up_mkl_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    const at::NoGradGuard no_grad;
    use_all(at::kFloat);
    use_all(at::kDouble);
  });
}

}  // namespace meshtorch::internal
