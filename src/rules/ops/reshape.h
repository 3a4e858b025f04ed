// The rule of view, from the two shapes of a call.
#pragma once

#include "rules/table.h"

namespace meshtorch::internal {

// Takes the arguments "self" and "size".
RuleUse reshape_rule(const OpArguments& call);

}  // namespace meshtorch::internal
