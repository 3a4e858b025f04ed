// Gradients of distributed tensors are distributed.
#include "autograd/gradient_guard.h"

#include <ATen/ATen.h>

#include "autograd/differentiable.h"
#include "tensor/meta.h"

namespace meshtorch {

at::Tensor guard_gradient(const at::Tensor& tensor) {
  const DTensorMeta& meta = *meta_of(tensor);
  const Layout* replicated = meta.mesh->replicated();
  return differentiable(
      "GradientGuard", tensor, [](const at::Tensor& x) { return x.alias(); },
      [replicated](const at::Tensor& gradient) {
        if (meta_of(gradient) != nullptr) return gradient;
        const at::Tensor plain = gradient.contiguous().clone();  // zeros may come without memory
        return wrap(plain, replicated, plain.sizes(), plain.strides());
      });
}

}  // namespace meshtorch
