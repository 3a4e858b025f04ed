// A backend whose ranks agree on each collective before anything is sent.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <chrono>
#include <vector>

namespace meshtorch {

// `inner`, whose calls are handed on, in order, when the members on this host have met with equal calls; else
// each gets the error that thread ranks get. Calls return at once: the meeting is part of what their work
// waits for. World ranks `ranks` are the members. `inner` itself where MESHTORCH_AGREEMENT is "off", or no
// other member is on this host.
c10::intrusive_ptr<c10d::Backend> with_agreement(c10::intrusive_ptr<c10d::Backend> inner,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<std::int64_t>& ranks,
                                                 std::chrono::milliseconds timeout);

}  // namespace meshtorch
