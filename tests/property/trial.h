// Trials of plain calls in a process of their own: LibTorch dies of some calls, and gives memory that nobody
// wrote as the result of others.
#pragma once

#include "../dist/call.h"

namespace meshtorch::testing {

// The first `count` calls that plain LibTorch takes and ends, giving the same when fresh memory, and tensors
// that are passed for results, hold other numbers.
std::vector<Call> well_defined(const std::vector<Call>& calls, std::size_t count);

}  // namespace meshtorch::testing
