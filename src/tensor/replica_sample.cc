// Checksums of parts of replicas.
#include "tensor/replica_sample.h"

#include <ATen/EmptyTensor.h>
#include <c10/util/StringUtil.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstring>
#include <utility>
#include <vector>

#include "comm/agreement.h"
#include "comm/pending.h"
#include "comm/replicas.h"
#include "mesh/mesh_impl.h"
#include "safetensors/checksum.h"

namespace meshtorch::internal {
namespace {

constexpr std::uint64_t kPartBytes = 4096;
constexpr std::uint64_t kPartElements = 64;  // where elements do not lie in order

// Memory of whole parameters is given back while nobody needs it.
bool has_memory(const at::Tensor& local) {
  return local.has_storage() &&
         local.storage().nbytes() >= at::detail::computeStorageNbytes(local.sizes(), local.strides(),
                                                                      local.itemsize(), local.storage_offset());
}

bool can_be_read(const at::Tensor& local) {
  return local.is_cpu() && local.layout() == at::kStrided && local.numel() > 0 && has_memory(local) &&
         !local.is_conj() && !local.is_neg() && !local.unsafeGetTensorImpl()->is_python_dispatch() &&
         !is_pending_tensor(local);
}

std::uint64_t checksum_of_bytes(const void* begin, std::uint64_t size) {
  return safetensors::internal::checksum({static_cast<const std::byte*>(begin), size});
}

// Of a few elements, in the order of their indices.
std::uint64_t checksum_of_elements(const at::Tensor& local, std::uint64_t part) {
  const auto* data = static_cast<const std::byte*>(local.const_data_ptr());
  const auto numel = static_cast<std::uint64_t>(local.numel());
  const std::size_t bytes = local.itemsize();
  std::vector<std::byte> elements;
  for (std::uint64_t i = 0; i < std::min(kPartElements, numel); ++i) {
    auto index = static_cast<std::int64_t>((part * kPartElements + i) % numel);
    std::int64_t offset = 0;
    for (std::int64_t dim = local.dim() - 1; dim >= 0; --dim) {
      offset += index % local.size(dim) * local.stride(dim);
      index /= local.size(dim);
    }
    const std::byte* element = data + offset * static_cast<std::int64_t>(bytes);
    elements.insert(elements.end(), element, element + bytes);
  }
  return checksum_of_bytes(elements.data(), elements.size());
}

std::uint64_t checksum_of_part(const at::Tensor& local, std::uint64_t part) {
  if (!local.is_contiguous()) return checksum_of_elements(local, part);
  const std::uint64_t parts = (local.nbytes() + kPartBytes - 1) / kPartBytes;
  const std::uint64_t begin = part % parts * kPartBytes;
  const auto* data = static_cast<const std::byte*>(local.const_data_ptr());
  return checksum_of_bytes(data + begin, std::min(kPartBytes, local.nbytes() - begin));
}

std::uint64_t checksum_of_ends(const at::Tensor& local) {
  const std::uint64_t last = local.nbytes() / kPartBytes;
  std::uint64_t all = checksum_of_part(local, 0);
  if (last > 0) all = combined(all, checksum_of_part(local, last / 2 + 1));
  return all;
}

std::vector<int> replicate_axes(const Layout& layout) {
  std::vector<int> axes;
  for (std::size_t axis = 0; axis < layout.placements.size(); ++axis) {
    if (layout.placements[axis].is_replicate() && layout.mesh->shape()[axis] > 1)
      axes.push_back(static_cast<int>(axis));
  }
  return axes;
}

std::vector<int> in_order(const MeshImpl::Numbers& ranks) {
  std::vector<int> ascending(ranks.begin(), ranks.end());
  std::sort(ascending.begin(), ascending.end());
  return ascending;
}

// What is said of a tensor when its replicas differ.
struct Description {
  std::string text() const {
    return c10::str(origin.maker == nullptr ? "tensor" : origin.maker, "(", c10::toString(type),
                    c10::IntArrayRef(shape), ", ", to_string(placements), ")");
  }
  TensorOrigin origin;
  c10::ScalarType type;
  Shape shape;
  Placements placements;
};

// Does not keep the tensor alive.
class TensorReplica final : public Replica {
 public:
  TensorReplica(const at::Tensor& local, std::vector<int> world_ranks, std::shared_ptr<const Description> description)
      : Replica(std::move(world_ranks), description->origin.id),
        local_(local.getIntrusivePtr()),
        description_(std::move(description)) {}

  std::string name() const override { return description_->text(); }
  bool is_alive() const override { return !local_.expired(); }
  std::optional<std::uint64_t> checksum(std::uint64_t part) const override {
    auto impl = local_.lock();
    if (!impl) return std::nullopt;
    const at::Tensor held(std::move(impl));
    if (!can_be_read(held)) return std::nullopt;
    return checksum_of_part(held, part);
  }

 private:
  const c10::weak_intrusive_ptr<c10::TensorImpl> local_;
  const std::shared_ptr<const Description> description_;
};

}  // namespace

void declare_replica(const at::Tensor& local, const Layout& layout, const TensorOrigin& origin,
                     const Shape& shape) {
  const MeshImpl& mesh = *layout.mesh;
  if (!mesh.coordinate() || !can_be_read(local)) return;
  const auto replicas = compared_replicas();
  if (!replicas) return;
  const std::vector<int> axes = replicate_axes(layout);
  if (axes.empty()) return;
  const MeshImpl::Numbers ranks = mesh.ranks_along(axes);

  const auto description =
      std::make_shared<const Description>(Description{origin, local.scalar_type(), shape, layout.placements});
  const std::uint64_t checksum = checksum_of_ends(local);
  CallHash hash;
  hash.add(origin.id);
  hash.add(checksum);
  const auto words = [description, checksum] {
    return c10::str("values of ", description->text(), ": ", std::hex, checksum);
  };
  declare(ranks, hash, words, [&] { return mesh.group(axes); }, DeclaredKind::values);
  if (origin.id != 0) replicas->add(std::make_shared<TensorReplica>(local, in_order(ranks), description));
}

}  // namespace meshtorch::internal
