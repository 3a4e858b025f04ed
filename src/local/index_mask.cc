// Indices into a split dim.
#include "local/index_mask.h"

#include <ATen/ATen.h>

namespace meshtorch::internal {

namespace {

// An index that no rank holds would count as elsewhere on all of them.
void check_indices(const at::Tensor& indices, std::int64_t size) {
  if (!indices.is_cpu() || indices.numel() == 0) return;
  const auto [least, largest] = at::aminmax(indices);
  TORCH_CHECK_INDEX(least.item<std::int64_t>() >= 0 && largest.item<std::int64_t>() < size,
                    "meshtorch: index out of range: ", least.item<std::int64_t>(), " to ",
                    largest.item<std::int64_t>(), " in a dim of size ", size,
                    "\n  in: a tensor that is split along this dim\n  do: give indices from 0 to ", size - 1);
}

// Counts the indices from the begin of this rank's part. Gives which of them lie elsewhere.
at::Tensor shift(const IndexMask& mask, c10::IValue& indices, std::int64_t elsewhere_is) {
  check_indices(indices.toTensor(), mask.whole_size);
  const at::Tensor shifted = indices.toTensor() - mask.begin;
  at::Tensor elsewhere = shifted.lt(0).bitwise_or_(shifted.ge(mask.size));
  indices = shifted.masked_fill(elsewhere, elsewhere_is);
  return elsewhere;
}

}  // namespace

at::Tensor apply_mask(const IndexMask& mask, c10::IValue& table, c10::IValue& indices) {
  const at::Tensor elsewhere = shift(mask, indices, /*elsewhere_is=*/0);
  if (mask.size == 0) {
    const at::Tensor empty = table.toTensor();
    Shape one_row = empty.sizes().vec();
    one_row[static_cast<std::size_t>(mask.dim)] = 1;
    table = at::zeros(one_row, empty.options());
  }
  if (elsewhere.dim() > 1) return elsewhere;
  Shape before(static_cast<std::size_t>(mask.dim), 1);  // dims of the result before those of the index
  before.insert(before.end(), elsewhere.sizes().begin(), elsewhere.sizes().end());
  return elsewhere.view(before);
}

void add_row_for_elsewhere(const IndexMask& mask, c10::IValue& table, c10::IValue& indices) {
  shift(mask, indices, /*elsewhere_is=*/mask.size);
  const at::Tensor own = table.toTensor();
  Shape one_row = own.sizes().vec();
  one_row[static_cast<std::size_t>(mask.dim)] = 1;
  table = at::cat({own, at::zeros(one_row, own.options())}, mask.dim);
}

at::Tensor without_row(const IndexMask& mask, const at::Tensor& table) {
  return table.narrow(mask.dim, 0, mask.size);
}

void clear_rows(const at::Tensor& result, const at::Tensor& elsewhere) {
  Shape shape = elsewhere.sizes().vec();
  shape.resize(static_cast<std::size_t>(result.dim()), 1);
  result.masked_fill_(elsewhere.view(shape), 0);
}

}  // namespace meshtorch::internal
