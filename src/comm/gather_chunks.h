// One all-gather of several tensors of which every rank holds a chunk, straight into the memory of the
// wholes.
#pragma once

#include <functional>

#include "comm/group_call.h"
#include "meshtorch/collectives.h"

namespace meshtorch::internal {

// What ranks agree on: the wholes, and along which dims they are cut.
class GatherChunksCall : public GroupCall {
 public:
  GatherChunksCall(at::TensorList wholes, at::IntArrayRef dims);

 private:
  std::string arguments() const override;
  at::TensorList wholes_;
  at::IntArrayRef dims_;
};

// Starts one collective, of any mix of types, that fills `wholes`, which are contiguous, with every rank's
// chunk of them along dims[i], as torch::chunk cuts: uneven and empty chunks are sent as they are. What it
// returns has to be called once before the wholes are read. The chunks may be changed as soon as it is
// started.
std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes, const Splits& dims,
                                          const Group& group);

}  // namespace meshtorch::internal
