// Conversions between plain and distributed tensors at the edge of a module.
#pragma once

#include <optional>

#include "meshtorch/dtensor.h"

namespace meshtorch {

// A dim whose global size a parameter tells.
struct KnownSize {
  std::int64_t dim;  // may be negative
  std::int64_t size;
};

// A plain tensor becomes distributed as `layout` says; a distributed one is kept.
DTensor annotated(const at::Tensor& tensor, const DeviceMesh& mesh, const Placement& layout,
                  const std::optional<KnownSize>& known = {});

// The tensor in this layout along `mesh`, which has one axis, under way if it has to move. A tensor on a mesh
// of several axes, one of which has the same name, stays as it is along the others.
DTensor moved_to(const DTensor& tensor, const DeviceMesh& mesh, const Placement& layout);

// The shard if asked for.
at::Tensor shard_if(bool use_local, const DTensor& tensor);

}  // namespace meshtorch
