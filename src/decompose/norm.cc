// Norms, from reductions that have rules.
#include <ATen/ATen.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/dist_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/norm_ops.h>

#include <cmath>

#include "decompose/families.h"
#include "decompose/reduced_dims.h"

namespace meshtorch::internal {
namespace {

// The norm of each line along `dim`.
at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim,
                       bool keepdim, std::optional<at::ScalarType> dtype) {
  // What is not defined without elements, or of whole numbers, in LibTorch's words.
  const auto has_norm = [](at::ScalarType type) {
    return at::isFloatingType(type) || at::isComplexType(type);
  };
  if (self.numel() == 0 || !has_norm(self.scalar_type()) || !has_norm(dtype.value_or(self.scalar_type()))) {
    const at::Tensor shape = at::empty(self.sizes(), self.options().device(at::kMeta));
    at::linalg_vector_norm(shape, ord, dim, keepdim, dtype);
  }
  const double order = ord.toDouble();
  const std::vector<std::int64_t> dims = reduced_dims(self, dim);
  at::Tensor x = dtype ? self.to(*dtype) : self;
  const at::ScalarType out_type = at::toRealValueType(x.scalar_type());
  const bool accumulates_wide = at::isReducedFloatingType(out_type);
  x = x.abs();
  if (accumulates_wide) x = x.to(at::kFloat);
  at::Tensor norm;
  if (std::isinf(order)) {
    norm = order > 0 ? at::amax(x, dims, keepdim) : at::amin(x, dims, keepdim);
  } else if (order == 0) {
    norm = x.ne(0).to(x.scalar_type()).sum(dims, keepdim);
  } else if (order == 1) {
    norm = x.sum(dims, keepdim);
  } else if (order == 2) {
    norm = x.mul(x).sum(dims, keepdim).sqrt();
  } else {
    norm = x.pow(order).sum(dims, keepdim).pow(1.0 / order);
  }
  return accumulates_wide ? norm.to(out_type) : norm;
}

at::Tensor norm_scalar(const at::Tensor& self, const at::Scalar& p) {
  return vector_norm(self, p, std::nullopt, false, std::nullopt);
}

at::Tensor norm_scalar_dim(const at::Tensor& self, const std::optional<at::Scalar>& p, at::IntArrayRef dim,
                           bool keepdim) {
  return vector_norm(self, p.value_or(2.0), dim, keepdim, std::nullopt);
}

// The distance of two tensors is the norm of their difference.
at::Tensor dist(const at::Tensor& self, const at::Tensor& other, const at::Scalar& p) {
  return norm_scalar(self - other, p);
}

std::vector<at::Tensor> foreach_norm(at::TensorList self, const at::Scalar& ord,
                                     std::optional<at::ScalarType> dtype) {
  std::vector<at::Tensor> norms;
  for (const at::Tensor& t : self) norms.push_back(vector_norm(t, ord, std::nullopt, false, dtype));
  return norms;
}

}  // namespace

void add_norm_decompositions(DecompositionTable& ops) {
  namespace op = at::_ops;
  ops.add<op::linalg_vector_norm>(vector_norm);
  ops.add<op::norm_Scalar>(norm_scalar);
  ops.add<op::norm_ScalarOpt_dim>(norm_scalar_dim);
  ops.add<op::dist>(dist);
  ops.add<op::_foreach_norm_Scalar>(foreach_norm);
}

}  // namespace meshtorch::internal
