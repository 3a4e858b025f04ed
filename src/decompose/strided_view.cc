// as_strided, where it says with strides what slices, permutations, repetitions or a view say with dims.
#include <ATen/ATen.h>
#include <ATen/ops/as_strided_ops.h>

#include <algorithm>
#include <numeric>
#include <optional>

#include "decompose/families.h"
#include "operator/refusals.h"
#include "tensor/meta.h"
#include "tensor/reduced.h"

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
  const auto view = along_dims(self, sizes, strides, from_here);
  TORCH_CHECK_NOT_IMPLEMENTED(view, "meshtorch: `aten::as_strided`", kAddressesMemory);
  return *view;
}

}  // namespace

void add_strided_view_decompositions(DecompositionTable& ops) { ops.add<at::_ops::as_strided>(as_strided); }

}  // namespace meshtorch::internal
