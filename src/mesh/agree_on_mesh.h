// Calls that all ranks of a mesh make alike, compared though they send nothing.
#pragma once

#include <string>

#include "world/agree.h"

namespace meshtorch::internal {

class MeshImpl;

// Blocks until every rank of the mesh has made the same call, in these words; throws what each called if they
// differ. Ranks outside the mesh pass by.
void agree_on(const MeshImpl& mesh, std::string call);
// Whether every rank of the mesh says yes to a question that all of them ask. A rank outside the mesh, and
// one whose peers are imagined, answers for itself.
bool all_say(const MeshImpl& mesh, const char* question, bool mine);
// The same as agree_on, without waiting: their next collective compares it.
void log_local_call(const MeshImpl& mesh, const CallHash& hash, const CallWords& words);

}  // namespace meshtorch::internal
