// Drawings of how a tensor is split.
#pragma once

#include <string>

#include "meshtorch/api.h"
#include "meshtorch/dtensor.h"

namespace meshtorch {

// A drawing for the terminal of which rank holds what: a row of boxes for one dim, a grid for two, a table
// for more.
MESHTORCH_API std::string visualize_sharding(const DTensor& tensor);
// The same as pictures; more than two dims are drawn by the first two that are split.
MESHTORCH_API std::string visualize_sharding_svg(const DTensor& tensor);
// A page that holds the picture and the table.
MESHTORCH_API std::string visualize_sharding_html(const DTensor& tensor);

}  // namespace meshtorch
