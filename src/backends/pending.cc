// A tensor whose data is still under way.
#include "backends/pending.h"

#include <c10/core/StorageImpl.h>
#include <c10/core/TensorImpl.h>

#include <atomic>
#include <exception>
#include <mutex>

#include "runtime/hidden_from_modes.h"
#include "runtime/key.h"

namespace meshtorch::internal {
namespace {

// Data on its way to one or more tensors; asked for once, whoever needs it first. It stands in for their
// storage until then, so that a tensor which takes over another's metadata (set_data) finds it too.
class DeferredData : public c10::StorageImpl {
 public:
  DeferredData(c10::Device device, std::function<at::Tensor()> finish)
      : StorageImpl(use_byte_size_t(), 0, c10::DataPtr(nullptr, device), /*allocator=*/nullptr,
                    /*resizable=*/false),
        finish_(std::move(finish)) {}

  // Blocks until the data is there. If that fails, every call throws the error.
  const at::Tensor& get() {
    const std::scoped_lock lock(mutex_);
    if (finish_) {
      const HiddenFromModes hidden;
      const auto finish = std::exchange(finish_, nullptr);
      try {
        data_ = finish().contiguous();
      } catch (...) {
        error_ = std::current_exception();
      }
    }
    if (error_) std::rethrow_exception(error_);
    return data_;
  }

 private:
  std::mutex mutex_;
  std::function<at::Tensor()> finish_;
  at::Tensor data_;
  std::exception_ptr error_;
};

// Carries the mesh key until it has been waited for, so that every operator passes through the fallback,
// which waits. Access to the data without an operator asks has_storage() or storage() first, and these wait
// too.
class PendingImpl : public c10::TensorImpl {
 public:
  PendingImpl(c10::DispatchKeySet keys, const caffe2::TypeMeta& type, c10::Device device,
              c10::intrusive_ptr<DeferredData> arrival)
      : TensorImpl(keys.add(kMeshKey), type, device), arrival_(std::move(arrival)) {
    storage_ = c10::Storage(arrival_);
  }

  void wait() const {
    if (is_there_.load(std::memory_order_acquire)) return;
    const std::scoped_lock lock(mutex_);
    if (is_there_.load(std::memory_order_relaxed)) return;
    auto& self = const_cast<PendingImpl&>(*this);
    const at::Tensor& data = arrival_->get();
    TORCH_INTERNAL_ASSERT(data.sizes() == sizes(), "expected ", sizes(), ", got ", data.sizes());
    self.storage_ = data.storage();
    self.storage_offset_ = data.storage_offset();
    // Other threads read it at any time, as LibTorch reads the keys of all tensors. Either value is right for
    // them: with the key they come here and wait for the lock, without it they ask storage(), which looks at
    // is_there_.
    std::atomic_ref(self.key_set_).store(key_set_.remove(kMeshKey), std::memory_order_release);
    self.settle();
  }

  bool is_waiting() const { return !is_there_.load(std::memory_order_acquire); }

  bool has_storage() const override {
    wait();
    return true;
  }
  const c10::Storage& storage() const override {
    wait();
    return storage_;
  }

  // Takes over another tensor's data: its own is not needed any more.
  void shallow_copy_from(const c10::intrusive_ptr<TensorImpl>& other) override {
    wait_pending(at::Tensor(other));
    const std::scoped_lock lock(mutex_);
    settle();
    TensorImpl::shallow_copy_from(other);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(const c10::VariableVersion& version_counter,
                                                         bool allow_tensor_metadata_change) const override {
    return detached(version_counter, allow_tensor_metadata_change);
  }
  c10::intrusive_ptr<TensorImpl> shallow_copy_and_detach(c10::VariableVersion&& version_counter,
                                                         bool allow_tensor_metadata_change) const override {
    return detached(version_counter, allow_tensor_metadata_change);
  }

  const char* tensorimpl_type_name() const override { return "meshtorch::PendingImpl"; }

 private:
  c10::intrusive_ptr<TensorImpl> detached(const c10::VariableVersion& version_counter,
                                          bool allow_tensor_metadata_change) const {
    wait();
    auto copy = c10::make_intrusive<TensorImpl>(c10::Storage(storage_), key_set_, data_type_);
    copy_tensor_metadata(this, copy.get(), version_counter, allow_tensor_metadata_change);
    return copy;
  }

  void settle() {
    arrival_.reset();
    is_there_.store(true, std::memory_order_release);
  }

  mutable std::mutex mutex_;
  std::atomic<bool> is_there_ = false;
  c10::intrusive_ptr<DeferredData> arrival_;
};

bool has_mesh_key(const at::Tensor& tensor) {
  return tensor.defined() && tensor.unsafeGetTensorImpl()->key_set().has(kMeshKey);
}

const PendingImpl* as_pending(const at::Tensor& tensor) {
  return dynamic_cast<const PendingImpl*>(tensor.unsafeGetTensorImpl());
}

// The data that a plain tensor took over from a pending one before it was there.
DeferredData* arrival_of(const at::Tensor& tensor) {
  return dynamic_cast<DeferredData*>(tensor.unsafeGetTensorImpl()->unsafe_storage().unsafeGetStorageImpl());
}

}  // namespace

at::Tensor make_pending(c10::IntArrayRef sizes, const at::TensorOptions& options,
                        std::function<at::Tensor()> finish) {
  const c10::DispatchKeySet keys(options.computeDispatchKey());
  auto impl = c10::make_intrusive<PendingImpl>(
      keys, options.dtype(), options.device(),
      c10::make_intrusive<DeferredData>(options.device(), std::move(finish)));
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

bool is_pending_tensor(const at::Tensor& tensor) {
  if (!has_mesh_key(tensor)) return false;
  const PendingImpl* pending = as_pending(tensor);
  return pending != nullptr ? pending->is_waiting() : arrival_of(tensor) != nullptr;
}

void wait_pending(const at::Tensor& tensor) {
  if (!has_mesh_key(tensor)) return;
  if (const PendingImpl* pending = as_pending(tensor)) {
    pending->wait();
  } else if (DeferredData* arrival = arrival_of(tensor)) {
    c10::TensorImpl* impl = tensor.unsafeGetTensorImpl();
    const at::Tensor data = arrival->get();
    impl->shallow_copy_from(data.getIntrusivePtr());
  }
}

}  // namespace meshtorch::internal
