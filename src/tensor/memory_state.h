// Whether the memory of a local tensor was written since something was computed from it: counters see what
// operators write, a checksum sees what others write through memory that they were given.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <optional>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// Says that code outside of the library can reach the memory: by to_local(), or since from_local() was given
// it. Writes through numpy, dlpack, `.data` and storages count no version.
MESHTORCH_FOR_PYTHON void note_exposed(const at::Tensor& local);
// From now on the writes of operators to that memory are counted apart from those to local tensors.
void count_writes_to(const at::Tensor& local);

// Says that an operator on distributed tensors wrote to a local tensor. All ranks of its mesh say so.
void note_write(const at::Tensor& local);
// Says that a local tensor was written by this rank alone, to bring it up to date.
void note_write_here(const at::Tensor& local);
// Says that a tensor shares memory with another, so that what is written to either is known of both.
void share_writes(const at::Tensor& view, const at::Tensor& base);

// How often the memory of a local tensor was written when this was taken.
class WriteCounts {
 public:
  explicit WriteCounts(const at::Tensor& local);
  // Whether operators on distributed tensors have written to it since: equal on all ranks that computed
  // alike. Only if the writes to it are counted.
  bool is_written_by_operators(const at::Tensor& local) const;
  // Whether anything that LibTorch counts has: also what this rank wrote to its local tensor.
  bool is_written(const at::Tensor& local) const;

 private:
  std::uint64_t version_;
  std::uint64_t operator_writes_;
};

// The state of a local tensor's memory when it was taken.
class MemoryState {
 public:
  explicit MemoryState(const at::Tensor& local);
  const WriteCounts& writes() const { return writes_; }
  // Whether the memory certainly holds what it held then. Reads it all if it is exposed. Ranks may differ.
  bool holds_for(const at::Tensor& local) const;

 private:
  WriteCounts writes_;
  std::optional<std::uint64_t> checksum_;  // none where the host cannot read the memory, or it is not exposed
};

}  // namespace meshtorch::internal
