// Messages between pairs of ranks: each pair meets in a group of its own.
#pragma once

#include "meshtorch/point_to_point.h"

namespace meshtorch::internal {

// Sends and receives without gradients. Blocks until the peers have come; on backends that run calls behind
// the caller's back, results are pending, `sent` among them.
SentAndReceived exchange_with_peers(const std::vector<SendTo>& sends,
                                    const std::vector<ReceiveFrom>& receives, const Group& group);

}  // namespace meshtorch::internal
