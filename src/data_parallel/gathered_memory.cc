// Memory that comes and goes under tensors that stay.
#include "data_parallel/gathered_memory.h"

#include <ATen/ATen.h>
#include <c10/core/InferenceMode.h>

#include "kernels/result_memory.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

constexpr std::int64_t kAlignment = 64;

}  // namespace

GatheredMemory::GatheredMemory(std::vector<Part> parts, at::Device device, const std::string& owner)
    : parts_(std::move(parts)), device_(device), owner_(owner) {
  const c10::InferenceMode normal_tensors(false);
  std::vector<std::int64_t> offsets;
  for (const Part& part : parts_) {
    offsets.push_back(bytes_);
    const std::int64_t bytes =
        c10::multiply_integers(part.shape) * static_cast<std::int64_t>(c10::elementSize(part.type));
    bytes_ += (bytes + kAlignment - 1) / kAlignment * kAlignment;
  }
  const at::TensorOptions options = at::TensorOptions().device(device);
  storage_ = at::empty({bytes_}, options.dtype(at::kByte)).storage();
  for (std::size_t i = 0; i < parts_.size(); ++i) {
    const auto size = static_cast<std::int64_t>(c10::elementSize(parts_[i].type));
    tensors_.push_back(
        at::empty({0}, options.dtype(parts_[i].type))
            .set_(storage_, offsets[i] / size, parts_[i].shape, dense_strides(parts_[i].shape)));
  }
  give_back();
}

void GatheredMemory::take() {
  if (device_.is_meta()) return;
  const at::TensorOptions options = at::TensorOptions().device(device_).dtype(at::kByte);
  const at::Tensor fresh = device_.is_cpu() ? empty_result({bytes_}, options) : at::empty({bytes_}, options);
  storage().clear_data_ptr_access_error_msg_();
  storage().set_data_ptr_noswap(
      fresh.storage().unsafeGetStorageImpl()->set_data_ptr(at::DataPtr(nullptr, device_)));
}

void GatheredMemory::give_back() {
  if (device_.is_meta()) return;
  storage().set_data_ptr_noswap(at::DataPtr(nullptr, device_));
  storage().release_data_and_set_meta_custom_data_ptr_error_msg_(c10::str(
      "meshtorch: parameters were read while they were not gathered\n  of: ", owner_,
      "\n  do: use them inside the module's forward and its backward, let what depends on them leave "
      "through forward's results, or call unshard() first"));
}

}  // namespace meshtorch::internal
