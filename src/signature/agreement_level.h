// How much ranks compare: the levels of agreement, by name and as the environment gives them.
#pragma once

#include <optional>
#include <string>

#include "meshtorch/agreement.h"
#include "meshtorch/api.h"

namespace meshtorch::internal {

// Returns what the program gave, else what MESHTORCH_AGREEMENT says, else `on`. Throws if there is no such
// level.
MESHTORCH_FOR_PYTHON Agreement agreement_level(std::optional<Agreement> given);
// "full", and back; `source` is named where there is no such level.
const char* to_string(Agreement level);
MESHTORCH_FOR_PYTHON Agreement agreement_named(const std::string& name, const char* source);

}  // namespace meshtorch::internal
