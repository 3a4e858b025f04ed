// Operators that read whole tensors, copy between plain and distributed ones, or make tensors of other
// shapes.
#include <ATen/ATen.h>
#include <ATen/MemoryOverlap.h>
#include <ATen/ops/_local_scalar_dense_ops.h>
#include <ATen/ops/_reshape_alias_ops.h>
#include <ATen/ops/allclose_ops.h>
#include <ATen/ops/copy_ops.h>
#include <ATen/ops/equal_ops.h>
#include <ATen/ops/fill_ops.h>
#include <ATen/ops/is_same_size_ops.h>
#include <ATen/ops/new_empty_strided_ops.h>
#include <ATen/ops/set_ops.h>
#include <ATen/ops/squeeze_ops.h>
#include <c10/core/WrapDimMinimal.h>

#include <algorithm>
#include <numeric>

#include "decompose/by_rule.h"
#include "decompose/families.h"
#include "dispatch/mixing.h"
#include "dispatch/write_back.h"
#include "meshtorch/dtensor.h"
#include "operator/refusals.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

at::Tensor whole(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) return tensor;
  TORCH_CHECK(meta->mesh->coordinate(), "meshtorch: rank ", meta->mesh->world_rank(),
              " is not in the tensor's mesh and cannot read its data\n  in: item(), bool, a copy to a plain "
              "tensor, of a tensor on ",
              DeviceMesh(meta->mesh).to_string(),
              "\n  do: read it on the ranks of the mesh, which have a get_coordinate(), only");
  return whole_local(tensor);
}

// item(): the global value, on every rank.
at::Scalar local_scalar_dense(const at::Tensor& self) { return at::_local_scalar_dense(whole(self)); }

bool is_outside_mesh(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  return meta != nullptr && !meta->mesh->coordinate();
}

bool lies_in_terms(const Layout& layout) {
  return std::ranges::any_of(layout.placements, [](const Placement& p) { return p.is_partial(); });
}

// Under a layout that one of two tensors has, each rank compares its own parts, and all learn of any that
// differ: one number is sent, no data of a tensor that lies like the other.
bool equal_in_parts(const at::Tensor& self, const at::Tensor& other, const Layout& layout) {
  const at::Tensor mine = local_under(self, layout);
  const at::Tensor differs =
      at::full({1}, at::equal(mine, local_under(other, layout)) ? 0 : 1, mine.options().dtype(at::kLong));
  Placements pending = layout.placements;
  for (Placement& p : pending) p = p.is_shard() ? Partial() : p;
  const Layout* replicated = layout.mesh->replicated();
  return redistribute_local(differs, {1}, *layout.mesh->layout(pending), *replicated).item().toLong() == 0;
}

// A rank outside the mesh holds nothing that could differ.
bool equal(const at::Tensor& self, const at::Tensor& other) {
  if (is_outside_mesh(self) || is_outside_mesh(other)) return self.sizes() == other.sizes();
  if (self.sizes() != other.sizes()) return false;
  const DTensorMeta* a = meta_of(self);
  const DTensorMeta* b = meta_of(other);
  if (a == nullptr || b == nullptr || a->mesh != b->mesh) return at::equal(whole(self), whole(other));
  // A whole tensor, or terms, rather than parts, come to lie like the other.
  const bool as_self = !lies_in_terms(*a->layout) && (!a->layout->is_replicated || lies_in_terms(*b->layout));
  const Layout* layout = as_self ? a->layout : lies_in_terms(*b->layout) ? a->mesh->replicated() : b->layout;
  return equal_in_parts(self, other, *layout);
}

bool allclose(const at::Tensor& self, const at::Tensor& other, double rtol, double atol, bool equal_nan) {
  const at::Tensor is_close = at::isclose(self, other, rtol, atol, equal_nan).all();
  return is_outside_mesh(is_close) || is_close.item().toBool();
}

bool is_same_size(const at::Tensor& self, const at::Tensor& other) { return self.sizes() == other.sizes(); }

// This rank's part of a source that is to lie as a tensor does, and to have its type.
at::Tensor source_as_lies(const at::Tensor& src, const at::Tensor& like) {
  const DTensorMeta& to = distributed(like, "copy_");
  return local_as(src.to(like.scalar_type()).expand(like.sizes()), *to.layout);
}

// Into a plain tensor goes the whole. Between tensors that lie alike each rank copies its own: also terms of
// a sum that is pending, since no cast hides in the copy. What was pending before the copy is not reduced:
// what is copied becomes terms like that. Else what the rule says.
at::Tensor& copy_into(at::Tensor& self, const at::Tensor& src, bool non_blocking) {
  DTensorMeta* to = meta_of(self);
  // What an operator makes inside has stand-ins too, on a rank outside the mesh.
  if (to == nullptr)
    return self.copy_(InsideComposite::is_any() ? whole_local(src) : whole(src), non_blocking);
  at::assert_no_internal_overlap(self);
  const DTensorMeta* from = meta_of(src);
  const bool is_alike = from != nullptr && from->layout == to->layout && self.sizes() == src.sizes() &&
                        self.scalar_type() == src.scalar_type();
  // A plain tensor that an operator made inside is the same on all ranks.
  const bool is_known = from != nullptr ? from->mesh == to->mesh : InsideComposite::is_any();
  if (!is_alike && !(is_known && lies_in_terms(*to->layout)))
    return by_rule<at::_ops::copy_>(self, src, non_blocking);
  const at::Tensor source = is_alike ? from->local : source_as_lies(src, self);
  to->local.copy_(source, non_blocking);
  note_write(to->local);
  to->origin = from != nullptr ? from->origin : TensorOrigin();
  if (to->write_back) write_through(self);
  return self;
}

// The same where a number is written, also to places that expand repeats.
at::Tensor& fill_with(at::Tensor& self, const at::Scalar& value) {
  const DTensorMeta* meta = meta_of(self);
  if (meta == nullptr || !lies_in_terms(*meta->layout)) return by_rule<at::_ops::fill__Scalar>(self, value);
  Placements of_number = meta->layout->placements;
  for (Placement& p : of_number) p = p.is_shard() ? Replicate() : p;
  const at::Tensor number = at::full({}, value, meta->local.options());
  meta->local.fill_(local_as(number, *meta->mesh->layout(of_number)).item());
  note_write(meta->local);
  if (meta->write_back) write_through(self);
  return self;
}

// torch::load gives a tensor the values of a plain one in this way: each rank keeps its part of what it read.
// What a distributed one holds is shared with it, as Python's parametrizations ask for.
at::Tensor& take_over(at::Tensor& self, const at::Tensor& source) {
  DTensorMeta* meta = meta_of(self);
  const DTensorMeta* from = meta_of(source);
  const bool is_like = meta != nullptr && !meta->write_back && self.scalar_type() == source.scalar_type() &&
                       (from != nullptr ? from->mesh == meta->mesh : self.sizes() == source.sizes());
  TORCH_CHECK_NOT_IMPLEMENTED(is_like, "meshtorch: `aten::set_`", kAddressesMemory);
  if (from != nullptr) {
    self.unsafeGetTensorImpl()->shallow_copy_from(source.getIntrusivePtr());
    return self;
  }
  const at::Tensor split = distribute_tensor(source.detach(), DeviceMesh(meta->mesh),
                                             meta->layout->placements, {.src_data_rank = std::nullopt});
  meta->local = distributed(split, "set_").local;
  return self;
}

// A tensor of the same kind with other strides, which autograd asks for when a gradient does not lie as its
// parameter does.
at::Tensor new_empty_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                             std::optional<at::ScalarType> dtype, std::optional<at::Layout> /*layout*/,
                             std::optional<at::Device> device, std::optional<bool> /*pin_memory*/) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  const at::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(stride);
  const DTensorMeta& meta = distributed(self, "new_empty_strided");
  const Layout* layout = self.sizes() == sizes ? meta.layout : meta.mesh->replicated();
  const Shape local_sizes = local_shape_of(sizes, *layout);
  at::TensorOptions options = meta.local.options();
  if (dtype) options = options.dtype(*dtype);
  if (device) options = options.device(*device);
  return wrap(at::empty_strided(local_sizes, dense_strides_like(local_sizes, strides), options), layout,
              sizes, strides);
}

// Only dims whose global size is 1 go: a shard may have size 1 where the tensor has not.
at::Tensor squeeze_dims(const at::Tensor& self, at::IntArrayRef dims) {
  std::vector<std::int64_t> ones;
  for (const std::int64_t given : dims) {
    const std::int64_t dim = c10::maybe_wrap_dim(given, self.dim());
    if (self.dim() > 0 && self.size(dim) == 1) ones.push_back(dim);
  }
  return by_rule<at::_ops::squeeze_dims>(self, ones);
}

at::Tensor squeeze_dim(const at::Tensor& self, std::int64_t dim) { return squeeze_dims(self, dim); }

at::Tensor squeeze(const at::Tensor& self) {
  std::vector<std::int64_t> all(static_cast<std::size_t>(self.dim()));
  std::iota(all.begin(), all.end(), 0);
  return squeeze_dims(self, all);
}

// A view that comes with the strides of the whole tensor: the shards have their own.
at::Tensor reshape_alias(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef /*stride*/) {
  return self.view(C10_AS_INTARRAYREF_SLOW(size));
}

}  // namespace

void add_copy_decompositions(DecompositionTable& ops) {
  namespace op = at::_ops;
  ops.add<op::_local_scalar_dense>(local_scalar_dense);
  ops.add<op::equal>(equal);
  ops.add<op::allclose>(allclose);
  ops.add<op::is_same_size>(is_same_size, {.takes_plain = true});
  ops.add<op::copy_>(copy_into, {.asks_rule = true, .takes_plain = true});
  ops.add<op::fill__Scalar>(fill_with, {.asks_rule = true});
  ops.add<op::set__source_Tensor>(take_over, {.takes_plain = true});
  ops.add<op::new_empty_strided>(new_empty_strided);
  ops.add<op::squeeze>(squeeze);
  ops.add<op::squeeze_dim>(squeeze_dim);
  ops.add<op::squeeze_dims>(squeeze_dims, {.asks_rule = true});
  ops.add<op::_reshape_alias>(reshape_alias);
}

}  // namespace meshtorch::internal
