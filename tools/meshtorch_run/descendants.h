// All processes below the launcher, also those that left their rank's process group.
#pragma once

#include <sys/types.h>

#include <vector>

namespace meshtorch::run {

// From now on, a process whose parent has died becomes a child of the launcher, not of init: as
// long as anything below the launcher lives, the launcher has a child.
void adopt_orphans();

// The children of the launcher, adopted ones included; empty if this kernel does not list them.
std::vector<pid_t> list_children();

}  // namespace meshtorch::run
