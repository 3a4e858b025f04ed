// What ranks did, as the page's data: names once, times from the first event on, the shortest left out. No
// torch.
#pragma once

#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "debug/trace_events.h"

namespace meshtorch::report::internal {

using namespace meshtorch::internal;

// The events of one rank as text that travels between ranks, and back.
std::string trace_text(const std::vector<TraceEvent>& events, int rank);

// {"names", "modules", "shortest", "left_out", "ranks": [{"rank", "events": [name, begin, duration, kind,
// depth, module, …]}]}: six numbers an event, times in microseconds, ordered by begin. `most` bounds the
// events of all ranks together.
nlohmann::ordered_json timeline_json(const std::vector<std::string>& texts, std::size_t most = 16000);

}  // namespace meshtorch::report::internal
