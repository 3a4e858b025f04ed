// One step of a plan between ranks that share memory: boxes are copied, or reduced, straight from one local
// tensor into another.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "comm/memory_backend.h"
#include "meshtorch/process_group.h"
#include "redistribute/transfer.h"

namespace meshtorch {

// What this rank gives to each member of its group, and gets from it.
struct StepBoxes {
  const Step& step;
  const Shape& shape;  // global
  std::vector<std::vector<Piece>> sent;
  std::vector<std::vector<Piece>> received;
  Shape result;  // of this rank
};

// All members get the same of this rank: `sent` is not needed.
at::Tensor gather_boxes(MemoryBackend& memory, const Group& group, const StepBoxes& boxes,
                        const at::Tensor& local);
at::Tensor exchange_boxes(MemoryBackend& memory, const Group& group, const StepBoxes& boxes,
                          const at::Tensor& local);
at::Tensor reduce_boxes(MemoryBackend& memory, const Group& group, const StepBoxes& boxes,
                        const at::Tensor& local);

}  // namespace meshtorch
