// Which operands a keep_layout scope leaves where they are.
#pragma once

#include "operator/operand.h"

namespace meshtorch::internal {

// Whether a keep_layout scope is open on this thread.
bool keeps_layouts();
// Whether an open scope leaves this operand as it is split: it is no parameter.
bool is_kept(const Operand& operand);

}  // namespace meshtorch::internal
