// Attention on sequences that are split over a mesh axis: how keys and values reach the queries.
#pragma once

#include <ATen/core/Tensor.h>

#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/device_mesh.h"

namespace meshtorch {

// All give the same results; they differ in what is sent, and in what a rank holds at a time (n ranks, S
// keys).
enum class RotateMethod : std::uint8_t {
  automatic,  // the cheaper of allgather and ulysses, by the mesh's costs
  allgather,  // keys and values are gathered: one collective, S keys on every rank
  ring,       // they travel around: n - 1 messages to the neighbour, 2 S / n keys at a time
  ulysses,    // heads are split instead of the sequence meanwhile; needs heads that n divides
};

// "auto", "allgather", "ring" or "ulysses"; "alltoall", as PyTorch calls it, is the ring. Throws ValueError.
MESHTORCH_API RotateMethod parse_rotate_method(std::string_view name);
MESHTORCH_API std::string_view to_string(RotateMethod method);

// How scaled_dot_product_attention works from now on where queries are split along the sequence, on this
// rank: set it on all of them alike. Forward and backward may differ.
MESHTORCH_API void set_rotate_method(RotateMethod method);
MESHTORCH_API void set_rotate_method(std::string_view name);
MESHTORCH_API RotateMethod get_rotate_method();

// How the scope context_parallel splits its buffers.
struct ContextParallelOptions {
  // Each rank gets a piece from the front of the sequence and one from the back, so that causal attention is
  // equal work for all. Lengths must then be multiples of twice the ranks.
  bool load_balance = true;
  // Buffers that need not have their data again afterwards.
  std::vector<at::Tensor> no_restore_buffers = {};
};

namespace internal {
struct ContextParallelState;
}  // namespace internal

// While it lives, the buffers are distributed tensors, split along their sequence dims over a mesh of one
// axis: inputs, labels, tables of positions. Before, they are plain tensors that every rank has in full, or
// tensors on a mesh with that axis, whole along it and along the sequence: a batch that is split over "dp",
// with mesh["cp"]. They stay the same objects and get their data again at the end; what was computed from
// them goes backward before that. Plain tensors that meet them count as replicated.
class MESHTORCH_API context_parallel {
 public:
  context_parallel(const DeviceMesh& mesh, const std::vector<at::Tensor>& buffers,
                   const std::vector<std::int64_t>& buffer_seq_dims,
                   const ContextParallelOptions& options = {});
  ~context_parallel();
  context_parallel(const context_parallel&) = delete;
  context_parallel& operator=(const context_parallel&) = delete;

 private:
  std::unique_ptr<internal::ContextParallelState> state_;
};

// The whole tensors, in the order of the sequence, of distributed tensors or shards that came out of such a
// scope, opened with the same load_balance.
MESHTORCH_API std::vector<at::Tensor> context_parallel_unshard(const DeviceMesh& mesh,
                                                               const std::vector<at::Tensor>& tensors,
                                                               const std::vector<std::int64_t>& seq_dims,
                                                               bool load_balance = true);

}  // namespace meshtorch
