// What the styles that split or replicate parameters do to one module, for modules of either language.
#pragma once

#include "meshtorch/parallel_style.h"
#include "nn/edges.h"
#include "nn/partition.h"

namespace meshtorch {

struct StyledModule {
  std::map<std::string, Placement> parameters;  // others are replicated
  Edges edges;
};

StyledModule styled(const ColwiseOptions& options, const SplittableModule& module);
StyledModule styled(const RowwiseOptions& options, const SplittableModule& module);
StyledModule styled(const SequenceOptions& options);
StyledModule styled(const NoParallelOptions& options);

}  // namespace meshtorch
