// A look-up in a split dim.
#include "local/index_mask.h"

#include <ATen/ATen.h>

namespace meshtorch {

at::Tensor apply_mask(const IndexMask& mask, c10::IValue& table, c10::IValue& indices) {
  const at::Tensor shifted = indices.toTensor() - mask.begin;
  const at::Tensor elsewhere = shifted.lt(0).bitwise_or_(shifted.ge(mask.size));
  indices = shifted.masked_fill(elsewhere, 0);
  if (mask.size == 0) {
    const at::Tensor empty = table.toTensor();
    Shape one_row = empty.sizes().vec();
    one_row[static_cast<std::size_t>(mask.dim)] = 1;
    table = at::zeros(one_row, empty.options());
  }
  return elsewhere;
}

void clear_rows(const at::Tensor& result, const at::Tensor& elsewhere) {
  Shape shape = elsewhere.sizes().vec();
  shape.resize(static_cast<std::size_t>(result.dim()), 1);
  result.masked_fill_(elsewhere.view(shape), 0);
}

}  // namespace meshtorch
