// The reduced value of a pending tensor, kept so that the second operator that reads it sends no data.
//
// That a value was kept is known to all ranks alike, and decisions may rest on it. Whether it still holds may
// be known to one rank only, which wrote its term, so the ranks ask each other before they use it.
#pragma once

#include <ATen/core/Tensor.h>

#include <functional>
#include <memory>
#include <vector>

#include "tensor/memory_state.h"
#include "tensor/meta.h"

namespace meshtorch::internal {

// A pending tensor's local tensor under a layout without pending reductions, and what it was made of.
struct Reduced {
  const Layout* layout;
  std::vector<int> axes;  // of the mesh: those whose ranks made it together
  at::Tensor local;
  MemoryState state;  // of `local`
  at::Tensor source;  // the pending local tensor
  MemoryState source_state;
};

// Returns this rank's local tensor of `tensor` under another layout, for an operator that reads it: as
// local_under gives it, but a pending tensor is reduced once and the value kept in it. All ranks of the mesh
// call it. The result may be shared with later reads: whoever writes to it calls note_write.
at::Tensor operand_under(const at::Tensor& tensor, const Layout& to);

// Alive while the terms of a pending tensor are multiplied in place, or divided, by one number: the value
// that was kept is so too, if it holds on this rank, and need not be reduced again.
class ScaledTerms {
 public:
  explicit ScaledTerms(DTensorMeta& meta);
  // The terms were scaled, and `scale` does the same to another tensor, out of place.
  void keep(const std::function<at::Tensor(const at::Tensor&)>& scale);

 private:
  DTensorMeta& meta_;
  std::shared_ptr<const Reduced> kept_;  // null if there is none, or it does not hold
};

// Returns the layout of the value that was kept, null if there is none. Equal on all ranks.
const Layout* reduced_layout(const DTensorMeta& meta);

}  // namespace meshtorch::internal
