// The flight record: the last 2,000 collectives of a rank, as JSON.
#pragma once

#include <string>

#include "meshtorch/api.h"

namespace meshtorch {

// Writes the calling rank's record to rank_<number>.json in the directory.
// `meshtorch-run --diagnose` compares those of all ranks. With MESHTORCH_FLIGHT_RECORD set to a directory it
// is also written there when a collective fails, when the rank leaves, and at SIGUSR1. Throws if it cannot be
// written.
MESHTORCH_API void write_flight_record(const std::string& directory);

}  // namespace meshtorch
