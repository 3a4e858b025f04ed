// What the styles that split or replicate parameters do to one module, for modules of either language.
#pragma once

#include "meshtorch/api.h"
#include "meshtorch/parallel_style.h"
#include "nn/edges.h"
#include "nn/partition.h"

namespace meshtorch::internal {

struct SplitStyle {
  std::map<std::string, Placement> parameters;  // others are replicated
  Edges edges;
};

MESHTORCH_FOR_PYTHON SplitStyle styled(const ColwiseOptions& options, const SplittableModule& module);
MESHTORCH_FOR_PYTHON SplitStyle styled(const RowwiseOptions& options, const SplittableModule& module);
MESHTORCH_FOR_PYTHON SplitStyle styled(const SequenceOptions& options);
MESHTORCH_FOR_PYTHON SplitStyle styled(const NoParallelOptions& options);

}  // namespace meshtorch::internal
