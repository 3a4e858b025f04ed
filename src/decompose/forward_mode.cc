// Derivatives that are taken forward: tensors that carry their tangents along.
#include <ATen/ATen.h>
#include <ATen/ops/_has_same_storage_numel_ops.h>

#include "backends/backend_traits.h"
#include "decompose/families.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

// LibTorch has one level of dual numbers for all threads of a process: a rank that leaves it takes the
// tangents of the others away.
void check_own_level() {
  const auto rank = current_rank();
  const World& world = rank->world();
  TORCH_CHECK_NOT_IMPLEMENTED(
      world.size == 1 || !traits_of(world.backend).ranks_are_threads,
      "meshtorch: forward-mode derivatives of distributed tensors cannot be taken on "
      "ranks that are threads\n  LibTorch has one level of them a process, and ",
      world.size, " ranks share it\n  do: start the ranks as processes, by meshtorch-run or torchrun");
}

// Autograd asks this of every tensor that is given a tangent, and compares shapes and strides next. Neither
// has a storage of its global shape.
bool has_same_storage_numel(const at::Tensor& self, const at::Tensor& other) {
  check_own_level();
  return self.numel() == other.numel();
}

}  // namespace

void add_forward_mode_decompositions(DecompositionTable& ops) {
  ops.add<at::_ops::_has_same_storage_numel>(has_same_storage_numel);
}

}  // namespace meshtorch::internal
