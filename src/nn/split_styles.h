// What the styles that split or replicate parameters do to one module, for modules of either language.
#pragma once

#include "meshtorch/parallel_style.h"
#include "nn/edges.h"
#include "nn/partition.h"

namespace meshtorch {

struct SplitStyle {
  std::map<std::string, Placement> parameters;  // others are replicated
  Edges edges;
};

SplitStyle styled(const ColwiseOptions& options, const SplittableModule& module);
SplitStyle styled(const RowwiseOptions& options, const SplittableModule& module);
SplitStyle styled(const SequenceOptions& options);
SplitStyle styled(const NoParallelOptions& options);

}  // namespace meshtorch
