// Filling a tensor from a part of a stored one.
#include "checkpoint/fill.h"

#include <ATen/ATen.h>

#include "checkpoint/dtype.h"

namespace meshtorch::safetensors {
namespace {

// How much is read at once when the target has another type or is not in one piece.
constexpr std::int64_t kSlabElements = std::int64_t{1} << 20;

// Calls visit(slab, begin) for pieces of `target` that hold at most kSlabElements elements each, in row-major
// order; `begin` is the first element's position.
template <class Visit>
void for_each_slab(const at::Tensor& target, std::int64_t begin, const Visit& visit) {
  if (target.numel() <= kSlabElements) {
    visit(target, begin);
  } else if (target.size(0) == 1) {
    for_each_slab(target.select(0, 0), begin, visit);
  } else {
    const std::int64_t row = target.numel() / target.size(0);
    const std::int64_t rows = std::max<std::int64_t>(1, kSlabElements / row);
    for (std::int64_t i = 0; i < target.size(0); i += rows) {
      const std::int64_t count = std::min(rows, target.size(0) - i);
      for_each_slab(target.narrow(0, i, count), begin + i * row, visit);
    }
  }
}

}  // namespace

void fill(const at::Tensor& target, const OpenFile& file, const StoredTensor& source,
          const ShardIndices& part) {
  const at::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(target.numel() == part.count());
  const at::ScalarType type = dtype_named(source.dtype);
  const auto read = [&](const at::Tensor& in_order, std::int64_t begin) {
    file.read(source, part, begin, begin + in_order.numel(), static_cast<std::byte*>(in_order.data_ptr()));
  };
  if (target.is_cpu() && target.scalar_type() == type && target.is_contiguous()) {
    read(target, 0);
    return;
  }
  for_each_slab(target, 0, [&](const at::Tensor& slab, std::int64_t begin) {
    const at::Tensor values = at::empty(slab.sizes(), at::TensorOptions(type));
    read(values, begin);
    slab.copy_(values);
  });
}

}  // namespace meshtorch::safetensors
