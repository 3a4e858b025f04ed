// Collectives of several tensors in two halves: begun while there is something else to do, and finished when
// their results are needed.
#pragma once

#include <functional>

#include "meshtorch/collectives.h"

namespace meshtorch::internal {

// Starts one collective, of any mix of types, that fills `wholes`, which are contiguous, with every rank's
// chunk of them along dims[i], as torch::chunk cuts: uneven and empty chunks are sent as they are. What it
// returns has to be called once before the wholes are read. The chunks may be changed as soon as it is
// started.
std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes, const Splits& dims,
                                          const Group& group);

// Starts one collective on tensors of one type. What it returns has to be called once; it gives this rank's
// chunk of each reduced tensor along dims[i], as torch::chunk cuts. The tensors may be changed or freed as
// soon as it is started.
std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op, const Splits& dims,
                                             const Group& group);

// The same of an all-reduce: it gives the reduced tensors.
std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op, const Group& group);

}  // namespace meshtorch::internal
