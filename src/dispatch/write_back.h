// Views of distributed tensors. A view that cannot share the memory of its base is a copy: writes to it are
// carried back to the base, and it is copied again when it is read after writes to the base.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>

#include <cstdint>
#include <mutex>
#include <optional>

#include "operator/decision.h"
#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

struct CopiedView final : WriteBack {
  // How the view's local tensor relates to that of its base. `moved` is the same on every rank; the others
  // are this rank's own matter.
  enum class Kind : std::uint8_t {
    shared,    // the same memory
    reshaped,  // a copy of another shape, made from the same shard
    moved,     // the base was redistributed first
  };
  Kind kind;
  at::Tensor base;  // with the memory and shape that it had when the view was taken
  c10::OperatorHandle op;
  torch::jit::Stack arguments;  // of the view operator
  std::size_t result;           // which of its results the view is

  CopiedView(Kind how, const at::Tensor& of, const c10::OperatorHandle& view_op, torch::jit::Stack given,
             std::size_t index);
  bool is_outdated() const override;
  void refresh(const DTensorMeta& view, Reader reader) const override;
  // The view was just written, or made like its base.
  void note_equal() const;

 private:
  bool holds(const DTensorMeta& of, Reader reader) const;

  mutable std::recursive_mutex mutex_;             // a view may be read while it is brought up to date
  mutable std::optional<MemoryState> base_state_;  // when the copy was last like it
};

// Wraps a result of a view operator on `base`, which was redistributed first if `moved`.
at::Tensor wrap_view(at::Tensor local, const ResultPlan& plan, const at::Tensor& base, bool moved,
                     const c10::OperatorHandle& op, const torch::jit::Stack& arguments, std::size_t result);

// How many elements of memory a tensor of these sizes and strides reaches over.
std::int64_t reach(at::IntArrayRef sizes, at::IntArrayRef strides);

// The whole of a distributed tensor as a plain one of the same strides and offset. All ranks of the mesh call
// it.
at::Tensor in_plain_memory(const at::Tensor& tensor);

// Carries what was written to `view` back to the tensor that it is a view of. All ranks of the mesh call it.
void write_through(const at::Tensor& view);

}  // namespace meshtorch::internal
