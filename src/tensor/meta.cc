// Wrapping a local tensor as a DTensor.
#include "tensor/meta.h"

#include <algorithm>
#include <numeric>

#include "runtime/transforms.h"

namespace meshtorch::internal {

c10::intrusive_ptr<c10::BackendMeta> DTensorMeta::clone(const c10::intrusive_ptr<c10::BackendMeta>&) const {
  auto copy = c10::make_intrusive<DTensorMeta>();
  copy->local = local;
  copy->layout = layout;
  copy->mesh = mesh;
  copy->write_back = write_back;
  copy->assumed = assumed;
  copy->origin = origin;
  copy->replica = replica;
  if (!reduced.is_empty()) copy->reduced.set(reduced.get());
  return copy;
}

namespace {

const std::string& memory_error() {
  static const std::string text = c10::str(
      kHasNoMemory, "\n  in: data_ptr() or storage(), which printing and torch::save call\n  do: print ",
      "DTensor(x), read DTensor(x).full_tensor() or to_local(), save with meshtorch::checkpoint::save; ",
      "remove the file that torch::save has begun, which cannot be loaded");
  return text;
}

}  // namespace

void reject_plain(const at::Tensor& tensor, const char* where) {
  if (tensor.defined()) check_untransformed(tensor, where);
  TORCH_CHECK_VALUE(
      false, "meshtorch: a plain tensor was taken for a distributed one\n  ",
      tensor.defined() ? c10::str("its shape: ", tensor.sizes()) : std::string("it is undefined"),
      "\n  in: ", where, "\n  do: make it one with distribute_tensor or DTensor::from_local");
}

at::Tensor wrap(at::Tensor local, const Layout* layout, c10::IntArrayRef sizes, c10::IntArrayRef strides,
                std::int64_t offset) {
  const c10::DispatchKeySet keys = local.key_set().add(kMeshKey).add(kCompositeKey);
  auto impl = c10::make_intrusive<c10::TensorImpl>(keys, local.dtype(), local.device());
  impl->set_sizes_and_strides(sizes, strides, offset);
  auto meta = c10::make_intrusive<DTensorMeta>();
  meta->mesh = layout->mesh->shared_from_this();
  meta->layout = layout;
  meta->local = std::move(local);
  impl->set_backend_meta(std::move(meta));
  impl->release_storage_and_set_meta_custom_data_ptr_error_msg_(memory_error());
  return at::Tensor(std::move(impl));
}

void adopt(const at::Tensor& self, const at::Tensor& other) {
  c10::TensorImpl* impl = self.unsafeGetTensorImpl();
  impl->set_sizes_and_strides(other.sizes(), other.strides(), other.storage_offset());
  const DTensorMeta& from = distributed(other, "an in-place change of shape");
  DTensorMeta& to = distributed(self, "an in-place change of shape");
  to.local = from.local;
  to.layout = from.layout;
  to.mesh = from.mesh;
  to.assumed = from.assumed;
  to.write_back = from.write_back;  // of the new shape
}

Shape dense_strides(c10::IntArrayRef sizes) {
  Shape strides(sizes.size());
  std::int64_t next = 1;
  for (std::size_t dim = sizes.size(); dim-- > 0;) {
    strides[dim] = next;
    next *= std::max<std::int64_t>(sizes[dim], 1);
  }
  return strides;
}

namespace {

// The inner dim first. LibTorch has no other name for this order, and strides of its own for empty tensors.
bool is_channels_last(const std::vector<std::size_t>& inner_first) {
  return inner_first == std::vector<std::size_t>{1, 3, 2, 0} ||
         inner_first == std::vector<std::size_t>{1, 4, 3, 2, 0};
}

}  // namespace

Shape dense_strides_like(c10::IntArrayRef sizes, c10::IntArrayRef like) {
  if (std::is_sorted(like.rbegin(), like.rend())) return dense_strides(sizes);  // row-major, as most are
  std::vector<std::size_t> inner_first(sizes.size());
  std::iota(inner_first.begin(), inner_first.end(), 0);
  std::stable_sort(inner_first.begin(), inner_first.end(), [&](std::size_t a, std::size_t b) {
    // Of equal strides the later dim is the inner one.
    return like[a] != like[b] ? like[a] < like[b] : a > b;
  });
  const std::int64_t least = is_channels_last(inner_first) ? 0 : 1;
  Shape strides(sizes.size());
  std::int64_t next = 1;
  for (const std::size_t dim : inner_first) {
    strides[dim] = next;
    next *= std::max(sizes[dim], least);
  }
  return strides;
}

Shape coordinate_in(const MeshImpl& mesh) {
  return mesh.coordinate().value_or(Shape(mesh.shape().size(), 0));
}

Shape local_shape_of(c10::IntArrayRef sizes, const Layout& layout) {
  return local_shape(sizes.vec(), layout.placements, layout.mesh->shape(), coordinate_in(*layout.mesh));
}

const Layout* checked_layout(MeshImpl& mesh, const Placements& placements, std::int64_t tensor_rank) {
  TORCH_CHECK_VALUE(placements.size() == mesh.shape().size(),
                    "meshtorch: `placements` must have the same length as the mesh has axes\n  placements: ",
                    to_string(placements), "\n  mesh: ", mesh.shape().size(),
                    mesh.shape().size() == 1 ? " axis" : " axes");
  Placements normalized;
  for (const Placement& p : placements) {
    TORCH_CHECK_VALUE(!p.is_shard() || (p.dim() >= -tensor_rank && p.dim() < tensor_rank),
                      "meshtorch: placement ", p.to_string(), " splits dim ", p.dim(),
                      ", but the tensor has ", tensor_rank, tensor_rank == 1 ? " dim" : " dims",
                      "\n  placements: ", to_string(placements));
    normalized.push_back(p.normalized(tensor_rank));
  }
  return mesh.layout(normalized);
}

}  // namespace meshtorch::internal
