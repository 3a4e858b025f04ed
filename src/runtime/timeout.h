// How long a collective may take: what is accepted.
#pragma once

#include <chrono>

#include "meshtorch/api.h"

namespace meshtorch::internal {

// Throws ValueError unless it is more than nothing and at most a year, so that no clock overflows.
void check_timeout(std::chrono::milliseconds timeout, const char* where);
// The same for seconds in a floating-point number, which may be none.
MESHTORCH_FOR_PYTHON std::chrono::milliseconds timeout_of(double seconds, const char* where);

// What InitOptions and SpawnOptions give where the caller gives nothing.
inline constexpr std::chrono::milliseconds kDefaultTimeout = std::chrono::minutes(10);
// MESHTORCH_TIMEOUT, in seconds, where that is set and `given` is the default.
std::chrono::milliseconds timeout_or_default(std::chrono::milliseconds given);

}  // namespace meshtorch::internal
