// Parts of tensors, one for each rank.
#include "kernels/parts.h"

#include <ATen/ATen.h>

#include <algorithm>

#include "core/shard.h"

namespace meshtorch::internal {

std::int64_t wrapped_dim(std::int64_t dim, const at::Tensor& t) {
  const std::int64_t count = std::max<std::int64_t>(t.dim(), 1);
  TORCH_CHECK_INDEX(dim >= -count && dim < count, "meshtorch: a collective was asked for dim ", dim,
                    " of a tensor of ", t.dim(), " dims\n  do: give a dim from ", -count, " to ", count - 1);
  return dim < 0 ? dim + count : dim;
}

std::vector<std::int64_t> sizes_with(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  std::vector<std::int64_t> sizes = t.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  return sizes;
}

at::Tensor padded(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  if (t.size(dim) == size) return t;
  at::Tensor room = at::zeros(sizes_with(t, dim, size), t.options());
  room.narrow(dim, 0, t.size(dim)).copy_(t);
  return room;
}

at::Tensor stacked_parts(const at::Tensor& t, std::int64_t dim, int count) {
  const std::int64_t size = t.size(dim);
  if (dim == 0 && size % count == 0) return t;
  const std::int64_t largest = chunk(size, count, 0).size;
  std::vector<at::Tensor> parts;
  for (int r = 0; r < count; ++r) {
    const Range mine = chunk(size, count, r);
    parts.push_back(padded(t.narrow(dim, mine.begin, mine.size), dim, largest));
  }
  return at::cat(parts, 0);
}

at::Tensor joined_parts(const at::Tensor& stacked, std::int64_t dim, const std::vector<std::int64_t>& sizes) {
  const auto count = static_cast<std::int64_t>(sizes.size());
  const std::int64_t rows = stacked.size(0) / count;
  std::vector<at::Tensor> parts;
  for (std::int64_t r = 0; r < count; ++r) {
    parts.push_back(stacked.narrow(0, r * rows, rows).narrow(dim, 0, sizes[static_cast<std::size_t>(r)]));
  }
  return at::cat(parts, dim);
}

}  // namespace meshtorch::internal
