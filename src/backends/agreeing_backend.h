// A backend whose ranks agree on each collective before anything is sent.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <string>
#include <vector>

namespace meshtorch::internal {

struct World;

// Makes a backend of the kind of `inner` among so many, of which this is number `rank`.
using Connect = std::function<c10::intrusive_ptr<c10d::Backend>(const c10::intrusive_ptr<c10d::Store>& store,
                                                                int rank, int size)>;

// `inner`, whose calls are handed on, in order, when the members have met with equal calls; else each gets
// the error that thread ranks get. A call does not wait for a member that is late: the meeting is then part
// of what its work waits for. World ranks `ranks` are the members, and this one is reached at `address`.
// Members on one host meet in memory, hosts by a backend that `connect` makes. Errors of `inner` are thrown
// with the ranks they come from and why those went. `inner` itself where the level of the world is `off`, or
// there is no other member.
c10::intrusive_ptr<c10d::Backend> with_agreement(c10::intrusive_ptr<c10d::Backend> inner,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<std::int64_t>& ranks, const World& world,
                                                 const std::string& address, const Connect& connect);

}  // namespace meshtorch::internal
