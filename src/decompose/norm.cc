// Norms, from reductions that have rules.
#include <ATen/ATen.h>
#include <ATen/ops/_foreach_norm_ops.h>
#include <ATen/ops/dist_ops.h>
#include <ATen/ops/linalg_vector_norm_ops.h>
#include <ATen/ops/norm_ops.h>

#include <algorithm>
#include <cmath>

#include "decompose/families.h"
#include "decompose/reduced_dims.h"
#include "tensor/meta.h"
#include "tensor/redistribute.h"

namespace meshtorch::internal {
namespace {

// What a norm is the root of, or the norm itself where it is none: pending where the tensor is split.
struct NormTerms {
  at::Tensor terms;
  at::ScalarType type;  // of the norm; the terms may be wider
};

NormTerms norm_terms(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim, bool keepdim,
                     std::optional<at::ScalarType> dtype) {
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
  const at::ScalarType type = at::toRealValueType(x.scalar_type());
  x = x.abs();
  if (at::isReducedFloatingType(type)) x = x.to(at::kFloat);
  if (std::isinf(order)) {
    return {order > 0 ? at::amax(x, dims, keepdim) : at::amin(x, dims, keepdim), type};
  }
  if (order == 0) return {x.ne(0).to(x.scalar_type()).sum(dims, keepdim), type};
  if (order == 1) return {x.sum(dims, keepdim), type};
  if (order == 2) return {x.mul(x).sum(dims, keepdim), type};
  return {x.pow(order).sum(dims, keepdim), type};
}

at::Tensor norm_of(const NormTerms& terms, const at::Scalar& ord) {
  const double order = ord.toDouble();
  at::Tensor norm = terms.terms;
  if (order == 2) {
    norm = norm.sqrt();
  } else if (order != 0 && order != 1 && !std::isinf(order)) {
    norm = norm.pow(1.0 / order);
  }
  return norm.to(terms.type);
}

// The norm of each line along `dim`.
at::Tensor vector_norm(const at::Tensor& self, const at::Scalar& ord, at::OptionalIntArrayRef dim,
                       bool keepdim, std::optional<at::ScalarType> dtype) {
  return norm_of(norm_terms(self, ord, dim, keepdim, dtype), ord);
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

// Tensors that one collective can reduce, by their places in a list.
struct PendingAlike {
  const Layout* layout;
  at::ScalarType type;
  std::vector<std::size_t> places;
};

// In the order of the list, which all ranks have.
std::vector<PendingAlike> pending_alike(const std::vector<NormTerms>& all) {
  std::vector<PendingAlike> groups;
  for (std::size_t i = 0; i < all.size(); ++i) {
    const DTensorMeta* meta = meta_of(all[i].terms);
    if (meta == nullptr || !meta->layout->has_partial) continue;
    const at::ScalarType type = all[i].terms.scalar_type();
    auto group = std::ranges::find_if(
        groups, [&](const PendingAlike& g) { return g.layout == meta->layout && g.type == type; });
    if (group == groups.end()) group = groups.insert(groups.end(), {meta->layout, type, {}});
    group->places.push_back(i);
  }
  return groups;
}

// Pending numbers, reduced together.
std::vector<at::Tensor> reduced_together(const std::vector<at::Tensor>& pending, const Layout& layout) {
  Placements placements = layout.placements;
  for (Placement& p : placements) p = p.is_partial() ? Replicate() : p;
  const at::Tensor stacked = at::stack(pending);
  return at::unbind_copy(redistribute_tensor(stacked, layout.mesh->layout(placements), {}));
}

std::vector<at::Tensor> foreach_norm(at::TensorList self, const at::Scalar& ord,
                                     std::optional<at::ScalarType> dtype) {
  std::vector<NormTerms> all;
  for (const at::Tensor& t : self) all.push_back(norm_terms(t, ord, std::nullopt, false, dtype));
  for (const PendingAlike& group : pending_alike(all)) {
    std::vector<at::Tensor> pending;
    for (const std::size_t i : group.places) pending.push_back(all[i].terms);
    const std::vector<at::Tensor> reduced = reduced_together(pending, *group.layout);
    for (std::size_t n = 0; n < reduced.size(); ++n) all[group.places[n]].terms = reduced[n];
  }
  std::vector<at::Tensor> norms;
  for (const NormTerms& terms : all) norms.push_back(norm_of(terms, ord));
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
