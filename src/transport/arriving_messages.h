// Results of messages that are under way.
#pragma once

#include <ATen/core/grad_mode.h>

#include "backends/pending.h"
#include "transport/peer_messages.h"

namespace meshtorch::internal {

// The results of `receives`, where finish(i) gives the i-th when all has arrived.
template <class Finish>
MessagesUnderway when_arrived(const PeerMessages& peer, std::shared_ptr<MessageWait> arrival,
                              const Finish& finish) {
  MessagesUnderway underway{std::move(arrival), {}};
  for (std::size_t i = 0; i < peer.receives.size(); ++i) {
    const auto get = [finish, i, arrived = underway.arrival] {
      if (arrived) arrived->wait(Collective::recv);
      const at::NoGradGuard no_grad;
      return finish(i);
    };
    underway.received.push_back(
        underway.arrival ? make_pending(peer.receives[i].sizes, peer.options[i].requires_grad(false), get)
                         : get());
  }
  return underway;
}

}  // namespace meshtorch::internal
