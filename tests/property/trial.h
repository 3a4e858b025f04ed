// A trial of a plain call in a process of its own: LibTorch dies of some calls, and gives memory that nobody
// wrote as the result of others.
#pragma once

#include "../dist/call.h"

namespace meshtorch::testing {

// True if the plain call ends, and gives the same when fresh memory holds other bytes.
bool is_well_defined(const Call& call);

}  // namespace meshtorch::testing
