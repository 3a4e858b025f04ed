// One step of a plan between ranks that share memory: boxes are copied, or reduced, straight from one local
// tensor into another.
#pragma once

#include <ATen/core/Tensor.h>

#include "comm/memory_backend.h"
#include "meshtorch/process_group.h"
#include "redistribute/prepared_move.h"

namespace meshtorch::internal {

at::Tensor gather_boxes(MemoryBackend& memory, const Group& group, const PreparedStep& boxes,
                        const at::Tensor& local);
at::Tensor exchange_boxes(MemoryBackend& memory, const Group& group, const PreparedStep& boxes,
                          const at::Tensor& local);
at::Tensor reduce_boxes(MemoryBackend& memory, const Group& group, const PreparedStep& boxes,
                        const at::Tensor& local);

}  // namespace meshtorch::internal
