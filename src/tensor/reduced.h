// The reduced value of a pending tensor, kept so that the second operator that reads it sends nothing.
#pragma once

#include <ATen/core/Tensor.h>

#include <optional>

#include "tensor/meta.h"

namespace meshtorch::internal {

// The tensor's local tensor under a layout without pending reductions, and what it was made of. It holds as
// long as neither was written.
struct Reduced {
  const Layout* layout;
  at::Tensor local;
  std::uint32_t version;  // of `local`
  at::Tensor source;      // the pending local tensor
  std::uint32_t source_version;
};

// This rank's local tensor of `tensor` under another layout, for an operator that reads it: as local_under
// gives it, but a pending tensor is reduced once and the value kept in it. The result may be shared with
// later reads: whoever writes to it calls note_write.
at::Tensor operand_under(const at::Tensor& tensor, const Layout& to);

// The layout to which a pending tensor was reduced before, if it was and that still holds; else null.
const Layout* reduced_layout(const DTensorMeta& meta);

// How often a local tensor was written, with all that share its memory; nothing of inference tensors, which
// do not count.
std::optional<std::uint32_t> writes_of(const at::Tensor& local);
// Says that a local tensor was written where LibTorch does not: below autograd.
void note_write(const at::Tensor& local);
// Says that a tensor shares memory with another, so that what is written to either is known of both.
void share_writes(const at::Tensor& view, const at::Tensor& base);

}  // namespace meshtorch::internal
