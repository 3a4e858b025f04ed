// Whether the memory of a local tensor was written.
#include "tensor/memory_state.h"

#include <c10/core/StorageImpl.h>

#include <array>
#include <cstdint>
#include <mutex>
#include <span>
#include <unordered_map>
#include <utility>

#include "backends/pending.h"
#include "safetensors/checksum.h"

namespace meshtorch::internal {
namespace {

// Inference tensors have no version.
bool has_version(const at::Tensor& tensor) { return !tensor.is_inference(); }

struct KnownStorage {
  c10::weak_intrusive_ptr<c10::StorageImpl>
      storage;  // keeps its address from being used again, not its memory
  bool is_exposed = false;
  std::uint64_t writes = 0;  // of operators, since it is known
};

// The storages that code outside of the library can reach, and those whose writes are counted.
class KnownStorages {
 public:
  static KnownStorages& all() {
    static auto* const storages = new KnownStorages;
    return *storages;
  }

  void add(const at::Tensor& tensor, bool is_exposed) {
    if (!tensor.has_storage()) return;
    Part& part = part_of(tensor);
    const std::scoped_lock lock(part.mutex);
    if (part.entries.size() >= part.next_cleanup) remove_freed(part);
    const auto entry =
        part.entries.try_emplace(key_of(tensor), KnownStorage{tensor.storage().getWeakStorageImpl()}).first;
    entry->second.is_exposed |= is_exposed;
  }
  void count_write(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return;
    Part& part = part_of(tensor);
    const std::scoped_lock lock(part.mutex);
    if (const auto entry = part.entries.find(key_of(tensor)); entry != part.entries.end())
      ++entry->second.writes;
  }

  struct Facts {
    bool is_exposed;
    std::uint64_t writes;
  };
  Facts facts_of(const at::Tensor& tensor) {
    if (!tensor.has_storage()) return {true, 0};  // nothing is known of its memory
    Part& part = part_of(tensor);
    const std::scoped_lock lock(part.mutex);
    const auto entry = part.entries.find(key_of(tensor));
    if (entry == part.entries.end()) return {false, 0};
    return {entry->second.is_exposed, entry->second.writes};
  }

 private:
  using Key = const c10::StorageImpl*;

  // Ranks that are threads do not wait for one lock.
  struct alignas(64) Part {
    std::mutex mutex;
    std::unordered_map<Key, KnownStorage> entries;
    std::size_t next_cleanup = kLeastCleanup;
  };

  static Key key_of(const at::Tensor& tensor) { return tensor.storage().unsafeGetStorageImpl(); }
  Part& part_of(const at::Tensor& tensor) {
    const auto address = reinterpret_cast<std::uintptr_t>(key_of(tensor));
    return parts_[(address >> 5 ^ address >> 11) % parts_.size()];
  }
  static void remove_freed(Part& part) {
    std::erase_if(part.entries, [](const auto& entry) { return entry.second.storage.expired(); });
    part.next_cleanup = 2 * part.entries.size() + kLeastCleanup;
  }

  static constexpr std::size_t kLeastCleanup = 64;
  std::array<Part, 64> parts_;
};

std::uint64_t version_of(const at::Tensor& local) {
  return has_version(local) ? local.unsafeGetTensorImpl()->version_counter().current_version() : 0;
}

std::optional<std::uint64_t> checksum_of(const at::Tensor& local) {
  wait_pending(local);
  if (local.is_meta()) return 0;  // there are no values
  if (!local.is_cpu() || local.layout() != at::kStrided) return std::nullopt;
  const at::Tensor dense = local.contiguous();
  return safetensors::internal::checksum(
      {static_cast<const std::byte*>(dense.const_data_ptr()), dense.nbytes()});
}

}  // namespace

void note_exposed(const at::Tensor& local) { KnownStorages::all().add(local, /*is_exposed=*/true); }
void count_writes_to(const at::Tensor& local) { KnownStorages::all().add(local, /*is_exposed=*/false); }

void note_write(const at::Tensor& local) {
  if (has_version(local)) local.unsafeGetTensorImpl()->bump_version();
  KnownStorages::all().count_write(local);
}

void note_write_here(const at::Tensor& local) {
  if (has_version(local)) {
    local.unsafeGetTensorImpl()->bump_version();
  } else {
    note_exposed(local);  // a checksum sees it
  }
}

void share_writes(const at::Tensor& view, const at::Tensor& base) {
  if (has_version(view) && has_version(base))
    view.unsafeGetTensorImpl()->set_version_counter(base.unsafeGetTensorImpl()->version_counter());
}

WriteCounts::WriteCounts(const at::Tensor& local)
    : version_(version_of(local)), operator_writes_(KnownStorages::all().facts_of(local).writes) {}

bool WriteCounts::is_written_by_operators(const at::Tensor& local) const {
  return KnownStorages::all().facts_of(local).writes != operator_writes_;
}

bool WriteCounts::is_written(const at::Tensor& local) const {
  return version_of(local) != version_ || is_written_by_operators(local);
}

MemoryState::MemoryState(const at::Tensor& local) : writes_(local) {
  if (KnownStorages::all().facts_of(local).is_exposed) checksum_ = checksum_of(local);
}

bool MemoryState::holds_for(const at::Tensor& local) const {
  if (writes_.is_written(local)) return false;
  if (!KnownStorages::all().facts_of(local).is_exposed) return true;
  return checksum_ && checksum_ == checksum_of(local);
}

}  // namespace meshtorch::internal
