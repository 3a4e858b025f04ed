// How long a collective may take: what is accepted.
#pragma once

#include <chrono>

namespace meshtorch {

// Throws ValueError unless it is more than nothing and at most a year, so that no clock overflows.
void check_timeout(std::chrono::milliseconds timeout, const char* where);
// The same for seconds in a floating-point number, which may be none.
std::chrono::milliseconds timeout_of(double seconds, const char* where);

}  // namespace meshtorch
