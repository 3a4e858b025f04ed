// Going through a tensor in pieces that fit a cache, so that a copy of the whole is never made.
#pragma once

#include <ATen/core/Tensor.h>

#include <algorithm>

namespace meshtorch::checkpoint::internal {

inline constexpr std::int64_t kSlabElements = std::int64_t{1} << 20;

// Calls visit(slab, begin) for pieces of `tensor` that hold at most kSlabElements elements each, in row-major
// order; `begin` is the position of the first element.
template <class Visit>
void for_each_slab(const at::Tensor& tensor, const Visit& visit, std::int64_t begin = 0) {
  if (tensor.numel() <= kSlabElements) {
    visit(tensor, begin);
  } else if (tensor.size(0) == 1) {
    for_each_slab(tensor.select(0, 0), visit, begin);
  } else {
    const std::int64_t row = tensor.numel() / tensor.size(0);
    const std::int64_t rows = std::max<std::int64_t>(1, kSlabElements / row);
    for (std::int64_t i = 0; i < tensor.size(0); i += rows)
      for_each_slab(tensor.narrow(0, i, std::min(rows, tensor.size(0) - i)), visit, begin + i * row);
  }
}

}  // namespace meshtorch::checkpoint::internal
