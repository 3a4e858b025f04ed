// The arguments of a call that a user names by its operator.
#pragma once

#include <ATen/core/stack.h>

#include <vector>

#include "operator/operator.h"

namespace meshtorch::internal {

// The arguments with the schema's defaults for those left out at the end. Throws ValueError if one of these
// has none, or if there are too many.
torch::jit::Stack with_defaults(const OperatorInfo& info, std::vector<c10::IValue> given);

}  // namespace meshtorch::internal
