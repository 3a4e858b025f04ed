// What a kernel gets of an operand.
#include "local/kernel_operand.h"

#include <ATen/ops/empty_strided.h>

#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// The dims of both lie in memory in one order.
bool has_order_of(const at::Tensor& whole, const at::Tensor& local) {
  for (std::int64_t a = 0; a < local.dim(); ++a) {
    for (std::int64_t b = a + 1; b < local.dim(); ++b) {
      if (local.size(a) > 1 && local.size(b) > 1 &&
          (whole.stride(a) < whole.stride(b)) != (local.stride(a) < local.stride(b)))
        return false;
    }
  }
  return true;
}

at::Tensor lying_like(const at::Tensor& whole, at::Tensor local) {
  if (whole.is_contiguous()) return local.contiguous();
  if (!whole.is_non_overlapping_and_dense()) return local;
  if (local.is_non_overlapping_and_dense() && has_order_of(whole, local)) return local;
  return at::empty_strided(local.sizes(), dense_strides_like(local.sizes(), whole.strides()), local.options())
      .copy_(local);
}

}  // namespace

at::Tensor as_kernel_operand(const at::Tensor& whole, at::Tensor local) {
  at::Tensor operand = lying_like(whole, std::move(local));
  c10::TensorImpl* impl = operand.unsafeGetTensorImpl();
  if (whole.unsafeGetTensorImpl()->is_wrapped_number() && !impl->is_wrapped_number())
    impl->set_wrapped_number(true);
  return operand;
}

}  // namespace meshtorch::internal
