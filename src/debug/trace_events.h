// Events of one rank in Chrome's trace format. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace meshtorch::internal {

struct TraceEvent {
  enum class Kind : std::uint8_t { scope, call, backward, collective, wait };
  std::string name;
  Kind kind = Kind::call;
  std::string module;  // that runs, the innermost; may be empty
  std::string group;   // of a collective, by name
  std::string shapes;  // of the inputs; may be empty
  double begin = 0;    // in microseconds since 1970, so that the ranks of one machine fit together
  double duration = 0;
  int thread = 0;  // of this rank, counted from 0
};

// Collectives and waits for them have a row of their own.
bool is_communication(std::string_view event_name);

// The events as JSON objects separated by commas, and the names of their rows.
std::string trace_objects(const std::vector<TraceEvent>& events, int rank);
// A whole file of the objects of several ranks.
std::string trace_file(const std::vector<std::string>& objects_of_ranks);

}  // namespace meshtorch::internal
