// Filling a tensor from a part of a stored one.
#include "checkpoint/fill.h"

#include <ATen/ATen.h>

#include "backends/wire.h"
#include "checkpoint/dtype.h"
#include "checkpoint/slab.h"
#include "runtime/host_tensor.h"

namespace meshtorch::safetensors::internal {

void fill(const at::Tensor& target, const OpenFile& file, const StoredTensor& source,
          const ShardIndices& part) {
  const at::NoGradGuard no_grad;
  TORCH_INTERNAL_ASSERT(target.numel() == part.count());
  const at::ScalarType type = dtype_named(source.dtype);
  const auto read = [&](const at::Tensor& in_order, std::int64_t begin) {
    file.read(source, part, begin, begin + in_order.numel(), static_cast<std::byte*>(in_order.data_ptr()));
  };
  if (target.is_cpu() && target.scalar_type() == type && meshtorch::internal::lies_in_order(target)) {
    read(target, 0);
    return;
  }
  // The target has another type, or is not in one piece.
  checkpoint::internal::for_each_slab(target, [&](const at::Tensor& slab, std::int64_t begin) {
    const at::Tensor values = at::empty(slab.sizes(), on_host(type));
    read(values, begin);
    slab.copy_(values);
  });
}

}  // namespace meshtorch::safetensors::internal
