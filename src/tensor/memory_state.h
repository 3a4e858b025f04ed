// Whether the memory of a local tensor was written since something was computed from it: version counters see
// what operators write, a checksum sees what others write through memory that they were given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

namespace meshtorch::internal {

// Says that code outside of the library can reach the memory: by to_local(), or since from_local() was given
// it. Writes through numpy, dlpack, `.data` and storages count no version.
void note_exposed(const at::Tensor& local);

// Says that a local tensor was written where LibTorch does not count it: below autograd.
void note_write(const at::Tensor& local);
// Says that a tensor shares memory with another, so that what is written to either is known of both.
void share_writes(const at::Tensor& view, const at::Tensor& base);
// How many writes were counted. Those to an inference tensor, which has no version, count since its memory
// was noted as exposed.
std::uint64_t writes_of(const at::Tensor& local);

// The state of a local tensor's memory when it was taken.
class MemoryState {
 public:
  explicit MemoryState(const at::Tensor& local);
  // Whether writes were counted since.
  bool is_written(const at::Tensor& local) const { return writes_of(local) != writes_; }
  // Whether the memory certainly holds what it held then. Reads it all if it is exposed.
  bool holds_for(const at::Tensor& local) const;

 private:
  std::uint64_t writes_;
  std::optional<std::uint64_t> checksum_;  // none where the host cannot read the memory, or it is not exposed
};

}  // namespace meshtorch::internal
