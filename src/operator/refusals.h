// Operators that cannot run on distributed tensors, with the words that say so.
#pragma once

#include <string_view>

namespace meshtorch::internal {

// Why, and what to do instead: the end of the message. Null if the operator is not refused.
const char* refusal_of(std::string_view op);

// For an operator that asks for memory which a distributed tensor has not.
extern const char* const kAddressesMemory;

// For a random operator that neither takes a generator nor has a rule.
extern const char* const kDrawsForEachRank;

}  // namespace meshtorch::internal
