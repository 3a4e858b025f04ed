// The gradients of some parameters, summed up over the data axes in one collective an axis.
#pragma once

#include <functional>
#include <vector>

#include "data_parallel/sharded_parameter.h"
#include "meshtorch/collectives.h"

namespace meshtorch::internal {

struct ReducedGradient {
  const ShardedParameter* parameter;
  at::Tensor local;      // this rank's shard, possibly under way
  const Layout* layout;  // null: `local` is the DTensor itself
};

struct TermReduction {
  ReduceOp op;
  std::optional<at::ScalarType> type;  // in which to add up; nothing: as they come
  double divisor = 1;                  // of the result
  bool over_copies = true;             // over the axis of copies, too
  // Called with the gradients that are reduced over the axis of shards, before those over copies; may be
  // empty.
  std::function<void(std::vector<ReducedGradient>&)> before_copies = {};
};

// Starts to reduce terms that all have one type, or the reduction names one. What it returns has to be called
// once; it gives the gradients.
std::function<std::vector<ReducedGradient>()> start_reduce_terms(
    const std::vector<const ShardedParameter*>& parameters, std::vector<ShardedParameter::Term> terms,
    const DataMesh& data, const TermReduction& reduction);

// The gradient as a DTensor of the parameter's type, when it is there.
at::Tensor arrived(const ReducedGradient& gradient);

}  // namespace meshtorch::internal
