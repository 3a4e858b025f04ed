// Whether the memory of a local tensor was written.
#include "tensor/memory_state.h"

#include <c10/core/StorageImpl.h>

#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "comm/pending.h"
#include "safetensors/checksum.h"

namespace meshtorch::internal {
namespace {

// Inference tensors have no version.
bool has_version(const at::Tensor& tensor) { return !tensor.is_inference(); }

// The storages that code outside of the library can reach. An entry keeps the storage's address from being
// used again, not its memory.
class ExposedStorages {
 public:
  static ExposedStorages& all() {
    static auto* const storages = new ExposedStorages;
    return *storages;
  }

  void add(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    const std::scoped_lock lock(mutex_);
    if (entries_.size() >= next_cleanup_) remove_freed();
    entries_.try_emplace(key_of(tensor), tensor.storage().getWeakStorageImpl());
  }
  bool contains(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return true;  // nothing is known of its memory
    const std::scoped_lock lock(mutex_);
    return entries_.contains(key_of(tensor));
  }
  void count_write(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    const std::scoped_lock lock(mutex_);
    const auto entry = entries_.find(key_of(tensor));
    if (entry != entries_.end()) ++entry->second.writes;
  }
  std::uint64_t writes_of(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return 0;
    const std::scoped_lock lock(mutex_);
    const auto entry = entries_.find(key_of(tensor));
    return entry == entries_.end() ? 0 : entry->second.writes;
  }

 private:
  struct Entry {
    explicit Entry(c10::weak_intrusive_ptr<c10::StorageImpl> storage_impl)
        : storage(std::move(storage_impl)) {}
    c10::weak_intrusive_ptr<c10::StorageImpl> storage;
    std::uint64_t writes = 0;
  };

  static const c10::StorageImpl* key_of(const at::Tensor& tensor) {
    return tensor.storage().unsafeGetStorageImpl();
  }
  void remove_freed() {
    std::erase_if(entries_, [](const auto& entry) { return entry.second.storage.expired(); });
    next_cleanup_ = 2 * entries_.size() + kLeastCleanup;
  }

  static constexpr std::size_t kLeastCleanup = 64;
  std::mutex mutex_;
  std::unordered_map<const c10::StorageImpl*, Entry> entries_;
  std::size_t next_cleanup_ = kLeastCleanup;
};

std::optional<std::uint64_t> checksum_of(const at::Tensor& local) {
  wait_pending(local);
  if (local.is_meta()) return 0;  // there are no values
  if (!local.is_cpu() || local.layout() != at::kStrided) return std::nullopt;
  const at::Tensor dense = local.contiguous();
  return safetensors::internal::checksum(
      {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace

void note_exposed(const at::Tensor& local) { ExposedStorages::all().add(local); }

void note_write(const at::Tensor& local) {
  if (has_version(local)) {
    local.unsafeGetTensorImpl()->bump_version();
  } else {
    ExposedStorages::all().count_write(local);
  }
}

void share_writes(const at::Tensor& view, const at::Tensor& base) {
  if (has_version(view) && has_version(base))
    view.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
}

std::uint64_t writes_of(const at::Tensor& local) {
  return has_version(local) ? local.unsafeGetTensorImpl()->version_counter().current_version()
                            : ExposedStorages::all().writes_of(local);
}

MemoryState::MemoryState(const at::Tensor& local) : writes_(writes_of(local)) {
  if (ExposedStorages::all().contains(local)) checksum_ = checksum_of(local);
}

bool MemoryState::holds_for(const at::Tensor& local) const {
  if (is_written(local)) return false;
  if (!ExposedStorages::all().contains(local)) return true;
  return checksum_ && checksum_ == checksum_of(local);
}

}  // namespace meshtorch::internal
