// A bound call as the choice sees it: where its operands lie, what must stay, what results must become.
#pragma once

#include "operator/bound_call.h"
#include "propagate/choose.h"

namespace meshtorch::internal {

// Where an operand lies; a plain one is the same on every rank.
const Placements& placements_of(const Operand& operand, MeshImpl& mesh);

Situation situation_of(const BoundCall& call, const OperatorInfo& info, const Operands& operands,
                       MeshImpl& mesh);

}  // namespace meshtorch::internal
