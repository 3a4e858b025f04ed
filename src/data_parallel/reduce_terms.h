// The gradients of some parameters, summed up over the data axes in one collective an axis.
#pragma once

#include <vector>

#include "data_parallel/sharded_parameter.h"
#include "meshtorch/collectives.h"

namespace meshtorch {

struct ReducedGradient {
  const ShardedParameter* parameter;
  at::Tensor local;      // this rank's shard, possibly under way
  const Layout* layout;  // null: `local` is the DTensor itself
};

struct TermReduction {
  ReduceOp op;
  std::optional<at::ScalarType> type;  // in which to add up; nothing: as they come
};

// All terms have one type, or the reduction names one.
std::vector<ReducedGradient> reduce_terms(const std::vector<const ShardedParameter*>& parameters,
                                          std::vector<ShardedParameter::Term> terms, const DataMesh& data,
                                          const TermReduction& reduction);

// The gradient as a DTensor of the parameter's type, when it is there.
at::Tensor arrived(const ReducedGradient& gradient);

}  // namespace meshtorch
