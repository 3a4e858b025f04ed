// Messages between pairs of ranks: each pair meets in a group of its own.
#pragma once

#include "meshtorch/point_to_point.h"

namespace meshtorch::internal {

// Whether a rank that shares memory with its peers waits for them at once, or when it uses the results.
enum class Meet : std::uint8_t { now, when_used };

// Sends and receives without gradients. On backends that run calls behind the caller's back results are
// pending in any case, `sent` among them. Where peers are met when results are used, all of them have to be
// used, `sent` too, before the third exchange that follows.
SentAndReceived exchange_with_peers(const std::vector<SendTo>& sends,
                                    const std::vector<ReceiveFrom>& receives, const Group& group,
                                    Meet meet = Meet::now);

}  // namespace meshtorch::internal
