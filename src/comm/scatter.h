// Sending every rank of a group its part of what one of them has.
#pragma once

#include <ATen/core/Tensor.h>

#include <vector>

#include "meshtorch/group.h"

namespace meshtorch::internal {

// The part of rank `source`'s data that is for this rank: parts[r] is for rank r. The other ranks give parts
// of the same shapes, of which nothing is read. Parts may differ in shape; the result owns its memory.
at::Tensor scatter_parts(const std::vector<at::Tensor>& parts, int source, const Group& group);

}  // namespace meshtorch::internal
