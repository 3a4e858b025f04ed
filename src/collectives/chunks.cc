// Collectives of several tensors in two halves.
#include "collectives/chunks.h"

#include "runtime/hidden_from_modes.h"
#include "transport/transport.h"

namespace meshtorch::internal {

std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes, const Splits& dims,
                                          const Group& group) {
  if (wholes.empty()) return [] {};
  return TransportOf(group, wholes[0])->start_gather_chunks(chunks, wholes, dims);
}

std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op, const Splits& dims,
                                             const Group& group) {
  if (terms.empty()) return [] { return Tensors(); };
  const HiddenFromModes hidden;
  return TransportOf(group, terms[0])->start_reduce_chunks(terms, op, dims);
}

std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op, const Group& group) {
  if (terms.empty()) return [] { return Tensors(); };
  const HiddenFromModes hidden;
  return TransportOf(group, terms[0])->start_reduce_wholes(terms, op);
}

}  // namespace meshtorch::internal
