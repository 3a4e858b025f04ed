// A backend whose ranks agree on each collective before anything is sent.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <string>
#include <vector>

namespace meshtorch::internal {

struct World;

// `inner`, whose calls are handed on, in order, when the members on this host have met with equal calls; else
// each gets the error that thread ranks get. A call does not wait for a member that is late: the meeting is
// then part of what its work waits for. World ranks `ranks` are the members, and this one is reached at
// `address`. Errors of `inner` are thrown with the ranks they come from and why those went. `inner` itself
// where the level of the world is `off`, or there is no other member.
c10::intrusive_ptr<c10d::Backend> with_agreement(c10::intrusive_ptr<c10d::Backend> inner,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<std::int64_t>& ranks, const World& world,
                                                 const std::string& address);

}  // namespace meshtorch::internal
