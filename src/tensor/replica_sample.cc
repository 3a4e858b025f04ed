// Checksums of parts of replicas.
#include "tensor/replica_sample.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <c10/util/StringUtil.h>
#include <c10/util/intrusive_ptr.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "backends/pending.h"
#include "mesh/mesh_impl.h"
#include "runtime/host_tensor.h"
#include "safetensors/checksum.h"
#include "signature/replicas.h"
#include "tensor/log_layout.h"
#include "world/agree.h"

namespace meshtorch::internal {
namespace {

constexpr std::uint64_t kPartBytes = 4096;
constexpr std::uint64_t kMiddlePart = 1000003;  // of however many
constexpr std::uint64_t kPartElements = 64;     // where elements do not lie in order

// Memory of whole parameters is given back while nobody needs it.
bool has_memory(const at::Tensor& local) {
  return local.has_storage() && local.storage().nbytes() >= at::detail::computeStorageNbytes(
                                                                local.sizes(), local.strides(),
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
    return c10::str(name, "(", c10::toString(type), c10::IntArrayRef(shape), ", ", to_string(placements),
                    ")");
  }
  std::string name;
  c10::ScalarType type;
  Shape shape;
  Placements placements;
};

// Does not keep the tensor or its memory alive.
class TensorReplica final : public Replica {
 public:
  TensorReplica(const DTensorMeta& tensor, std::vector<int> world_ranks, Description description)
      : Replica(std::move(world_ranks), tensor.origin.id),
        tensor_(tensor.replica),
        storage_(tensor.local.storage().getWeakStorageImpl()),
        sizes_(tensor.local.sizes().vec()),
        strides_(tensor.local.strides().vec()),
        offset_(tensor.local.storage_offset()),
        description_(std::move(description)) {}

  std::string name() const override { return description_.text(); }
  bool is_alive() const override { return !tensor_.expired() && !storage_.expired(); }
  bool is_in_use() const override {
    const auto tensor = tensor_.lock();
    return tensor && tensor->is_read();
  }
  // Of the beginning and of a part in the middle.
  std::uint64_t checksum_of_ends() const {
    return combined(checksum(0).value_or(0), checksum(kMiddlePart).value_or(0));
  }
  std::optional<std::uint64_t> checksum(std::uint64_t part) const override {
    auto storage = storage_.lock();
    if (!storage) return std::nullopt;
    const at::Tensor held = at::empty({0}, on_host(description_.type))
                                .set_(c10::Storage(std::move(storage)), offset_, sizes_, strides_);
    if (!can_be_read(held)) return std::nullopt;
    return checksum_of_part(held, part);
  }

 private:
  const std::weak_ptr<const ComparedReplica> tensor_;
  const c10::weak_intrusive_ptr<c10::StorageImpl> storage_;
  const Shape sizes_;
  const Shape strides_;
  const std::int64_t offset_;
  const Description description_;
};

// The axes along which ranks compare the tensor; none if they do not.
std::vector<int> compared_axes(const DTensorMeta& tensor) {
  if (!tensor.mesh->coordinate() || !can_be_read(tensor.local)) return {};
  return replicate_axes(*tensor.layout);
}

// What is said of a new replica.
struct NewReplica {
  std::vector<int> axes;
  MeshImpl::Numbers ranks;
  Description description;
};

// Nothing if ranks do not compare it.
std::optional<NewReplica> new_replica(const DTensorMeta& tensor, std::string name, const Shape& shape) {
  std::vector<int> axes = compared_axes(tensor);
  if (axes.empty()) return std::nullopt;
  MeshImpl::Numbers ranks = tensor.mesh->ranks_along(axes);
  return NewReplica{std::move(axes),
                    std::move(ranks),
                    {std::move(name), tensor.local.scalar_type(), shape, tensor.layout->placements}};
}

// Whether ranks that show a part of it know that it is the same tensor.
bool has_known_id(const DTensorMeta& tensor) {
  return tensor.origin.id != 0 && tensor.origin.id != kUnknownOrigin;
}

// The next collective compares a sample.
void declare_values(const TensorReplica& replica, const MeshImpl& mesh, const std::vector<int>& axes) {
  const std::uint64_t checksum = replica.checksum_of_ends();
  CallHash hash;
  hash.add(checksum);
  const auto words = [name = replica.name(), checksum] {
    return c10::str("values of ", name, ": ", std::hex, checksum);
  };
  log_local_call(
      mesh.ranks_along(axes), hash, words, [&] { return mesh.group(axes); }, LocalCallKind::values);
}

}  // namespace

void declare_replica(DTensorMeta& tensor, const Shape& shape) {
  const auto replicas = compared_replicas();
  auto made =
      replicas ? new_replica(tensor, tensor.origin.maker == nullptr ? "tensor" : tensor.origin.maker, shape)
               : std::nullopt;
  if (!made) return;
  tensor.replica = std::make_shared<const ComparedReplica>();
  auto replica = std::make_shared<TensorReplica>(tensor, in_order(made->ranks), std::move(made->description));
  declare_values(*replica, *tensor.mesh, made->axes);
  if (has_known_id(tensor)) replicas->add(std::move(replica));
}

void declare_parameter_replica(DTensorMeta& tensor, const std::string& name, const Shape& shape) {
  tensor.origin = origin_of_made("parameter", *tensor.layout, tensor.local.scalar_type());
  const auto replicas = compared_replicas();
  auto made = replicas ? new_replica(tensor, "parameter " + name, shape) : std::nullopt;
  if (!made || !has_known_id(tensor)) return;
  tensor.replica = std::make_shared<const ComparedReplica>();
  tensor.replica->note_read();  // no operator of its own reads it
  replicas->add(std::make_shared<TensorReplica>(tensor, in_order(made->ranks), std::move(made->description)));
}

}  // namespace meshtorch::internal
