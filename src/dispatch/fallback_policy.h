// What happens when an operator has no rule.
#pragma once

#include <cstdint>
#include <string>

namespace meshtorch::internal {

// Warns once for each operator that it runs on whole tensors, or throws, or says nothing, as the policy is.
void note_replicated_operator(const std::string& name, std::int64_t gathered_bytes);

}  // namespace meshtorch::internal
