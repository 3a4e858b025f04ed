// Conversions between plain and distributed tensors at the edge of a module.
#pragma once

#include <optional>

#include "meshtorch/api.h"
#include "meshtorch/dtensor.h"

namespace meshtorch::internal {

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

// What a style does with the first input and the first output of its module.
struct MESHTORCH_FOR_PYTHON Edges {
  Placement input;  // of a plain tensor that comes in
  Placement desired_input;
  std::optional<KnownSize> input_size;
  std::optional<Placement> natural_output;  // what the module gives, if that is known
  std::optional<Placement> output;          // nothing: as it comes
  bool use_local_output;

  at::Tensor enter(const at::Tensor& tensor, const DeviceMesh& mesh) const;
  at::Tensor leave(const at::Tensor& tensor, const DeviceMesh& mesh) const;
  // Whether a module without hooks does as well, given distributed inputs.
  bool need_no_hooks() const;
};

}  // namespace meshtorch::internal
