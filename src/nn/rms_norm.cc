// RMSNorm, the one common module that LibTorch's C++ API lacks.
#include <ATen/ops/ones.h>
#include <ATen/ops/rms_norm.h>

#include "meshtorch/nn.h"

namespace meshtorch::nn {
using namespace internal;

RMSNormImpl::RMSNormImpl(RMSNormOptions options_) : options(std::move(options_)) { reset(); }

void RMSNormImpl::reset() {
  const torch::Tensor ones =
      options.elementwise_affine ? torch::ones(options.normalized_shape) : torch::Tensor();
  weight = register_parameter("weight", ones, options.elementwise_affine);
}

void RMSNormImpl::pretty_print(std::ostream& stream) const {
  stream << "meshtorch::nn::RMSNorm(" << torch::IntArrayRef(options.normalized_shape)
         << ", elementwise_affine=" << std::boolalpha << options.elementwise_affine << ")";
}

torch::Tensor RMSNormImpl::forward(const torch::Tensor& input) {
  const std::optional<torch::Tensor> scale = weight.defined() ? std::optional(weight) : std::nullopt;
  return at::rms_norm(input, options.normalized_shape, scale, options.eps);
}

}  // namespace meshtorch::nn
