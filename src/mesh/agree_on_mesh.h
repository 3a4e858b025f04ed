// Calls that all ranks of a mesh make alike, compared though they send nothing.
#pragma once

#include <string>

#include "comm/agreement.h"

namespace meshtorch::internal {

class MeshImpl;

// Blocks until every rank of the mesh has called the same with the same arguments; throws what each called if
// they differ. Ranks outside the mesh pass by.
void agree_on(const MeshImpl& mesh, const std::string& call, const std::string& arguments);

}  // namespace meshtorch::internal
