// Options of an operator that a program lists itself, in the place of those that follow from a rule.
#pragma once

#include <functional>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"
#include "operator/stack_arguments.h"

namespace meshtorch::internal {

// For one mesh axis, every right way to run the call: a placement for each tensor argument that is given
// (each element of a list), and one for each result. That all are replicated need not be listed.
using ListOptions = std::function<std::vector<ListedOption>(const StackArguments& call)>;

// Of an out= variant the functional operator gets them. Throws ValueError if the operator does not run by
// rules.
MESHTORCH_FOR_PYTHON void register_options(std::string_view op, ListOptions list);

}  // namespace meshtorch::internal
