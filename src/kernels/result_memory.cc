// Memory for the results of collectives: an allocator that keeps what is freed.
#include "kernels/result_memory.h"

#include <ATen/EmptyTensor.h>
#include <ATen/ops/empty.h>
#include <ATen/record_function.h>
#include <c10/core/CPUAllocator.h>
#include <c10/util/Exception.h>
#include <sys/mman.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <mutex>
#include <vector>

namespace meshtorch::internal {
namespace {

// Below, LibTorch's allocator has memory at hand that was used before.
constexpr std::size_t kLarge = std::size_t{256} << 10;
constexpr std::size_t kHugePage = std::size_t{2} << 20;
constexpr std::size_t kSmallStep = std::size_t{64} << 10;

struct Block {
  char* data = nullptr;
  std::size_t bytes = 0;
};

std::size_t rounded(std::size_t bytes) {
  const std::size_t step = bytes < kHugePage ? kSmallStep : kHugePage;
  return (bytes + step - 1) / step * step;
}

// Aligned to huge pages where it can have some.
Block map_block(std::size_t bytes) {
  const std::size_t slack = bytes < kHugePage ? 0 : kHugePage;
  void* room = mmap(nullptr, bytes + slack, PROT_READ | PROT_WRITE,
                    MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  TORCH_CHECK(room != MAP_FAILED, "meshtorch: ", bytes,
              " bytes for the result of a collective cannot be had: ", std::strerror(errno),
              "\n  do: use smaller tensors, or give the processes more memory");
  if (slack == 0) return {static_cast<char*>(room), bytes};
  char* begin = static_cast<char*>(room);
  const std::size_t before = (kHugePage - reinterpret_cast<std::uintptr_t>(begin) % kHugePage) % kHugePage;
  if (before > 0) munmap(begin, before);
  if (slack > before) munmap(begin + before + bytes, slack - before);
  madvise(begin + before, bytes, MADV_HUGEPAGE);  // a wish: small pages are as right
  return {begin + before, bytes};
}

class ResultAllocator final : public c10::Allocator {
 public:
  c10::DataPtr allocate(std::size_t bytes) override {
    if (bytes < kLarge) return c10::GetCPUAllocator()->allocate(bytes);
    Block block = take(rounded(bytes));
    if (block.data == nullptr) block = map_block(rounded(bytes));
    c10::profiledCPUMemoryReporter().New(block.data, bytes);
    return {block.data, new Block(block), &give_back, c10::Device(c10::DeviceType::CPU)};
  }

  void copy_data(void* to, const void* from, std::size_t bytes) const override {
    default_copy_data(to, from, bytes);
  }

  std::size_t kept_bytes() {
    const std::scoped_lock lock(mutex_);
    return kept_bytes_;
  }

 private:
  // A kept block of that size, or of a little more.
  Block take(std::size_t bytes) {
    const std::scoped_lock lock(mutex_);
    for (auto block = kept_.rbegin(); block != kept_.rend(); ++block) {
      if (block->bytes < bytes || block->bytes > bytes + bytes / 8) continue;
      const Block found = *block;
      kept_.erase(std::next(block).base());
      kept_bytes_ -= found.bytes;
      return found;
    }
    return {};
  }

  static void give_back(void* context);

  void keep(const Block& block) {
    const std::scoped_lock lock(mutex_);
    kept_.push_back(block);
    kept_bytes_ += block.bytes;
    while (kept_bytes_ > kMaxKeptBytes) {
      munmap(kept_.front().data, kept_.front().bytes);
      kept_bytes_ -= kept_.front().bytes;
      kept_.erase(kept_.begin());
    }
  }

  std::mutex mutex_;
  std::vector<Block> kept_;  // the oldest first
  std::size_t kept_bytes_ = 0;
};

// Tensors may outlive everything that is static.
ResultAllocator& allocator() {
  static auto* const one = new ResultAllocator;
  return *one;
}

void ResultAllocator::give_back(void* context) {
  const std::unique_ptr<Block> block(static_cast<Block*>(context));
  c10::profiledCPUMemoryReporter().Delete(block->data);
  allocator().keep(*block);
}

}  // namespace

at::Tensor empty_result(at::IntArrayRef sizes, const at::TensorOptions& options) {
  const at::ScalarType type = c10::typeMetaToScalarType(options.dtype());
  if (at::detail::computeStorageNbytesContiguous(sizes, c10::elementSize(type)) < kLarge) {
    return at::empty(sizes, options);
  }
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (record.isActive()) record.before("aten::empty");
  at::Tensor result = at::detail::empty_generic(
      sizes, &allocator(), c10::DispatchKeySet(c10::DispatchKey::CPU), type, std::nullopt);
  if (record.needsOutputs()) record.setOutputs(std::vector<c10::IValue>{result});
  return result;
}

std::size_t kept_result_bytes() { return allocator().kept_bytes(); }

}  // namespace meshtorch::internal
