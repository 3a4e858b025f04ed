// Collectives of groups whose ranks share memory: straight to the backend, into the final layout.
#pragma once

#include "comm/backend.h"
#include "comm/memory_backend.h"
#include "meshtorch/collectives.h"

namespace meshtorch::internal {

// The backend, if the group's ranks share memory and such a tensor lies in it; else null.
inline MemoryBackend* memory_for(const Group& group, const at::Tensor& t) {
  return t.is_cpu() ? memory_backend_of(*group.process_group()) : nullptr;
}

// The tensor as memory that can be read, with at least one dim.
at::Tensor readable_rows(const at::Tensor& t);

// Each is the public function of that name, after its checks.

at::Tensor all_reduce_in_memory(MemoryBackend& memory, const at::Tensor& self, ReduceOp op,
                                const Group& group);
Tensors all_reduce_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, ReduceOp op,
                                       const Group& group);
at::Tensor all_gather_in_memory(MemoryBackend& memory, const at::Tensor& input, std::int64_t dim,
                                const Splits& sizes, const Group& group);
Tensors all_gather_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, const Group& group);
at::Tensor reduce_scatter_in_memory(MemoryBackend& memory, const at::Tensor& self, ReduceOp op,
                                    std::int64_t dim, const Group& group);
Tensors reduce_scatter_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, ReduceOp op,
                                           const Splits& dims, const Group& group);
at::Tensor exchange_in_memory(MemoryBackend& memory, const at::Tensor& input, const Splits& to_receive,
                              const Splits& to_send, const Group& group, c10::IntArrayRef sizes);
at::Tensor broadcast_in_memory(MemoryBackend& memory, const at::Tensor& self, int source, const Group& group);
void barrier_in_memory(MemoryBackend& memory, const Group& group);

}  // namespace meshtorch::internal
