// as_strided and its kin, which address the memory of a tensor: by views, where strides say what slices,
// permutations, repetitions or a view say with dims; else on the whole tensor, which lies as a plain one
// would.
#include <ATen/ATen.h>
#include <ATen/ops/as_strided_copy_ops.h>
#include <ATen/ops/as_strided_ops.h>
#include <ATen/ops/as_strided_scatter_ops.h>
#include <ATen/ops/resize_as_ops.h>
#include <ATen/ops/resize_ops.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "decompose/families.h"
#include "dispatch/fallback_policy.h"
#include "dispatch/write_back.h"
#include "operator/operator.h"
#include "tensor/from_local.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// What is taken of one dim, and the dim of the result that it becomes, none for a single index.
struct Taken {
  std::int64_t start = 0;
  std::int64_t step = 1;
  std::optional<std::size_t> result;
};

// The dims of a dense tensor that hold more than one index, the outermost first.
std::vector<std::size_t> outer_first(const at::Tensor& self) {
  std::vector<std::size_t> dims;
  for (std::size_t d = 0; d < self.sizes().size(); ++d) {
    if (self.sizes()[d] > 1) dims.push_back(d);
  }
  std::ranges::sort(dims, std::greater<>(), [&](std::size_t d) { return self.strides()[d]; });
  return dims;
}

// What as_strided takes of each dim of a dense tensor; nothing if its elements do not lie along dims.
std::optional<std::vector<Taken>> taken_of(const at::Tensor& self, at::IntArrayRef size,
                                           at::IntArrayRef stride, std::int64_t offset) {
  std::vector<Taken> taken(self.sizes().size());
  const std::vector<std::size_t> dims = outer_first(self);
  for (const std::size_t d : dims) {
    taken[d].start = offset / self.strides()[d];
    offset %= self.strides()[d];
    if (taken[d].start >= self.sizes()[d]) return std::nullopt;
  }
  if (offset != 0) return std::nullopt;
  for (std::size_t r = 0; r < size.size(); ++r) {
    if (size[r] == 1 || stride[r] == 0) continue;
    const auto d =
        std::ranges::find_if(dims, [&](std::size_t dim) { return self.strides()[dim] <= stride[r]; });
    if (d == dims.end() || taken[*d].result || stride[r] % self.strides()[*d] != 0) return std::nullopt;
    Taken& along = taken[*d];
    along.step = stride[r] / self.strides()[*d];
    along.result = r;
    if (along.start + (size[r] - 1) * along.step >= self.sizes()[*d]) return std::nullopt;
  }
  return taken;
}

at::Tensor cut_along(at::Tensor self, const std::vector<Taken>& taken, at::IntArrayRef size) {
  std::vector<std::size_t> results;  // of the dims that are left
  for (std::size_t d = taken.size(); d-- > 0;) {
    const Taken& along = taken[d];
    const auto dim = static_cast<std::int64_t>(d);
    if (!along.result) {
      self = self.select(dim, along.start);
      continue;
    }
    results.insert(results.begin(), *along.result);
    const std::int64_t end = along.start + (size[*along.result] - 1) * along.step + 1;
    self = self.slice(dim, along.start, end, along.step);
  }
  std::vector<std::int64_t> order(results.size());
  std::iota(order.begin(), order.end(), 0);
  std::ranges::sort(order, {}, [&](std::int64_t dim) { return results[static_cast<std::size_t>(dim)]; });
  self = self.permute(order);
  for (std::size_t r = 0; r < size.size(); ++r) {
    if (std::ranges::find(results, r) == results.end()) self = self.unsqueeze(static_cast<std::int64_t>(r));
  }
  return self.expand(size);
}

std::optional<at::Tensor> along_dims(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                                     std::int64_t offset) {
  const bool is_dense = self.numel() > 0 && self.is_non_overlapping_and_dense();
  if (!is_dense || offset < 0 || std::ranges::find(size, 0) != size.end()) return std::nullopt;
  const bool is_view = offset == 0 && self.is_contiguous() &&
                       stride == at::IntArrayRef(dense_strides(size)) &&
                       c10::multiply_integers(size) == self.numel();
  if (is_view) return self.view(size);
  const auto taken = taken_of(self, size, stride, offset);
  return taken ? std::optional(cut_along(self, *taken, size)) : std::nullopt;
}

// A tensor that every rank has whole lies in memory as a plain one does, or, outside its mesh, stands in.
bool lies_as_a_plain_one(const DTensorMeta& meta, at::IntArrayRef strides) {
  return meta.layout->is_replicated && !meta.write_back &&
         (meta.local.strides() == strides || !meta.mesh->coordinate());
}

at::Tensor strided_local(const DTensorMeta& meta, at::IntArrayRef size, at::IntArrayRef stride,
                         std::int64_t from_here) {
  if (!meta.mesh->coordinate()) return meta.local.new_zeros(size);
  at::Tensor local = meta.local.as_strided(size, stride, meta.local.storage_offset() + from_here);
  share_writes(local, meta.local);
  return local;
}

// Of what lies in memory beside the elements of a tensor that is a view, a distributed one knows nothing.
void check_reach(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                 std::int64_t from_here) {
  const bool is_inside = self.is_non_overlapping_and_dense() && from_here >= 0 &&
                         from_here + reach(size, stride) <= self.numel();
  TORCH_CHECK_NOT_IMPLEMENTED(
      is_inside,
      "meshtorch: `aten::as_strided` addresses memory beside the elements of a distributed tensor"
      "\n  it has: ",
      self.sizes(), ", strides ", self.strides(), ", from ", self.storage_offset(), "\n  asked for: ", size,
      ", strides ", stride, ", from ", self.storage_offset() + from_here,
      "\n  do: call it on the tensor that this one is a view of, or use view, select, slice or expand");
}

void note_whole(const char* op, const at::Tensor& self) {
  if (distributed(self, op).layout->is_replicated) return;
  note_replicated_operator(op, self.numel() * static_cast<std::int64_t>(self.element_size()));
}

// A copy on every rank, which sees writes to the tensor and is written through.
at::Tensor of_whole(const at::Tensor& self, at::IntArrayRef size, at::IntArrayRef stride,
                    std::int64_t offset) {
  static const c10::OperatorHandle& op = operator_named("as_strided").op;
  note_whole("as_strided", self);
  ResultPlan plan;
  plan.layout = distributed(self, "as_strided").mesh->replicated();
  plan.sizes = size.vec();
  plan.strides = stride.vec();
  plan.offset = offset - self.storage_offset();
  return wrap_view(in_plain_memory(self).as_strided(size, stride, offset), plan, self, /*moved=*/true, op,
                   {self, size, stride, offset}, 0);
}

at::Tensor as_strided(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                      std::optional<c10::SymInt> storage_offset) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  const at::IntArrayRef strides = C10_AS_INTARRAYREF_SLOW(stride);
  const std::int64_t offset = storage_offset ? storage_offset->expect_int() : self.storage_offset();
  const std::int64_t from_here = offset - self.storage_offset();
  if (self.sizes() == sizes && self.strides() == strides && from_here == 0) return at::alias(self);
  const DTensorMeta& meta = distributed(self, "as_strided");
  if (lies_as_a_plain_one(meta, self.strides()))
    return wrap(strided_local(meta, sizes, strides, from_here), meta.layout, sizes, strides, offset);
  if (const auto view = along_dims(self, sizes, strides, from_here)) return *view;
  check_reach(self, sizes, strides, from_here);
  return of_whole(self, sizes, strides, offset);
}

at::Tensor as_strided_copy(const at::Tensor& self, c10::SymIntArrayRef size, c10::SymIntArrayRef stride,
                           std::optional<c10::SymInt> storage_offset) {
  return self.as_strided_symint(size, stride, std::move(storage_offset)).clone();
}

// What is written beside the elements of the tensor, nobody sees.
at::Tensor as_strided_scatter(const at::Tensor& self, const at::Tensor& src, c10::SymIntArrayRef size,
                              c10::SymIntArrayRef stride, std::optional<c10::SymInt> storage_offset) {
  const DTensorMeta& meta = distributed(self, "as_strided_scatter");
  note_whole("as_strided_scatter", self);
  const at::Tensor whole = in_plain_memory(self);
  whole.as_strided_symint(size, stride, std::move(storage_offset)).copy_(whole_local(src));
  const at::Tensor result = whole.clone();
  return wrap(result, meta.mesh->replicated(), result.sizes(), result.strides());
}

// The tensor with more elements than it had, in the order in which they lie: the new ones are zeros.
at::Tensor grown(const at::Tensor& self, at::IntArrayRef sizes, at::IntArrayRef strides) {
  const DTensorMeta& meta = distributed(self, "resize_");
  TORCH_CHECK_NOT_IMPLEMENTED(
      self.is_non_overlapping_and_dense() && self.unsafeGetTensorImpl()->version_counter().unique(),
      "meshtorch: `aten::resize_` to more elements, of a tensor that has views, is one, or shares its data"
      "\n  shape: ",
      self.sizes(), " to ", sizes, "\n  do: make a new tensor, and copy_ into a part of it");
  note_whole("resize_", self);
  const at::Tensor local = at::zeros({reach(sizes, strides)}, meta.local.options());
  local.narrow(0, 0, self.numel()).as_strided(self.sizes(), self.strides()).copy_(whole_local(self));
  return wrap(local.as_strided(sizes, strides), meta.mesh->replicated(), sizes, strides);
}

Shape strides_in(at::IntArrayRef sizes, std::optional<at::MemoryFormat> format) {
  const auto options =
      at::TensorOptions(at::kMeta).memory_format(format.value_or(at::MemoryFormat::Contiguous));
  return at::empty(sizes, options).strides().vec();
}

const at::Tensor& resize_(const at::Tensor& self, c10::SymIntArrayRef size,
                          std::optional<at::MemoryFormat> format) {
  const at::IntArrayRef sizes = C10_AS_INTARRAYREF_SLOW(size);
  if (self.sizes() == sizes && !format) return self;
  const Shape strides = strides_in(sizes, format);
  const bool grows = c10::multiply_integers(sizes) > self.numel();
  adopt(self, grows ? grown(self, sizes, strides) : self.as_strided(sizes, strides));
  return self;
}

const at::Tensor& resize_as_(const at::Tensor& self, const at::Tensor& like,
                             std::optional<at::MemoryFormat> format) {
  if (format == at::MemoryFormat::Preserve) format = like.suggest_memory_format();
  return resize_(self, like.sym_sizes(), format);
}

}  // namespace

void add_strided_view_decompositions(DecompositionTable& ops) {
  ops.add<at::_ops::as_strided>(as_strided);
  ops.add<at::_ops::as_strided_copy>(as_strided_copy);
  ops.add<at::_ops::as_strided_scatter>(as_strided_scatter);
  ops.add<at::_ops::resize_>(resize_);
  ops.add<at::_ops::resize_as_>(resize_as_, {.takes_plain = true});
}

}  // namespace meshtorch::internal
