// A rank without elements takes part in a call whose kernels need some.
#include "local/stand_in.h"

#include <ATen/ATen.h>

namespace meshtorch::internal {

void lengthen_arguments(const StandIn& stand_in, c10::IValue* arguments) {
  for (const auto& [argument, dim, size] : stand_in.arguments) {
    const at::Tensor none = arguments[argument].toTensor();
    std::vector<std::int64_t> sizes = none.sizes().vec();
    sizes[static_cast<std::size_t>(dim)] = size;
    arguments[argument] = none.new_zeros(sizes);
  }
}

void empty_results(const StandIn& stand_in, c10::IValue* results, std::size_t count) {
  for (std::size_t r = 0; r < count; ++r) {
    at::Tensor result = results[r].toTensor();
    if (!result.defined()) continue;
    bool is_part = false;
    for (const auto& [number, dim, size] : stand_in.results) {
      if (number != r) continue;
      result = result.narrow(dim, 0, 0);
      is_part = true;
    }
    results[r] = is_part ? result : at::zeros_like(result);
  }
}

}  // namespace meshtorch::internal
