// Runs the ranks of one machine to their common end.
#pragma once

#include "options.h"

namespace meshtorch::run {

// Starts all ranks, passes their output on, and returns the launcher's exit code when no process of
// theirs is left. Throws std::system_error if the machine refuses the launcher itself what it
// needs.
int launch(const Options& options);

}  // namespace meshtorch::run
