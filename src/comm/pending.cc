// A tensor whose data is still under way.
#include "comm/pending.h"

#include <c10/core/TensorImpl.h>

#include <mutex>

#include "dispatch/key.h"

namespace meshtorch {
namespace {

// Carries the mesh key until it has been waited for, so that every operator passes through the fallback, which waits. Access to the
// data without an operator asks has_storage() or storage() first, and these wait too.
class PendingImpl : public c10::TensorImpl {
 public:
  PendingImpl(c10::DispatchKeySet keys, const caffe2::TypeMeta& type, c10::Device device,
              std::function<at::Tensor()> finish)
      : TensorImpl(keys.add(kMeshKey), type, device), finish_(std::move(finish)) {}

  void wait() const {
    const std::scoped_lock lock(mutex_);
    if (!finish_) return;
    auto& self = const_cast<PendingImpl&>(*this);
    const at::Tensor data = std::exchange(self.finish_, nullptr)().contiguous();
    TORCH_INTERNAL_ASSERT(data.sizes() == sizes(), "expected ", sizes(), ", got ", data.sizes());
    self.storage_ = data.storage();
    self.storage_offset_ = data.storage_offset();
    self.key_set_ = key_set_.remove(kMeshKey);
  }

  bool is_waiting() const {
    const std::scoped_lock lock(mutex_);
    return finish_ != nullptr;
  }

  bool has_storage() const override {
    wait();
    return true;
  }
  const c10::Storage& storage() const override {
    wait();
    return storage_;
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

  mutable std::mutex mutex_;
  std::function<at::Tensor()> finish_;
};

const PendingImpl* as_pending(const at::Tensor& tensor) {
  return dynamic_cast<const PendingImpl*>(tensor.unsafeGetTensorImpl());
}

}  // namespace

at::Tensor make_pending(c10::IntArrayRef sizes, const at::TensorOptions& options, std::function<at::Tensor()> finish) {
  const c10::DispatchKeySet keys(options.computeDispatchKey());
  auto impl = c10::make_intrusive<PendingImpl>(keys, options.dtype(), options.device(), std::move(finish));
  impl->set_sizes_contiguous(sizes);
  return at::Tensor(std::move(impl));
}

bool is_pending_tensor(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(kMeshKey)) return false;
  const PendingImpl* pending = as_pending(tensor);
  return pending != nullptr && pending->is_waiting();
}

void wait_pending(const at::Tensor& tensor) {
  if (!tensor.defined() || !tensor.unsafeGetTensorImpl()->key_set().has(kMeshKey)) return;
  if (const PendingImpl* pending = as_pending(tensor)) pending->wait();
}

}  // namespace meshtorch
