// A trace of what each rank does, for ui.perfetto.dev and chrome://tracing.
#pragma once

#include <cstddef>
#include <memory>
#include <string>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch {

namespace internal {
struct TraceState;
}  // namespace internal

// Records this rank's operators, collectives, waits for collectives, backward nodes and user scopes
// (RECORD_USER_SCOPE), from its construction to stop() or its end. An operator on distributed tensors holds
// what it does on shards as operators inside it. Modes nest: each records by itself.
class MESHTORCH_API TraceMode {
 public:
  TraceMode();
  ~TraceMode();
  TraceMode(const TraceMode&) = delete;
  TraceMode& operator=(const TraceMode&) = delete;

  void stop();
  std::size_t size() const;

  // This rank's events in Chrome's trace format: one process for each rank, in it one row for operators and
  // one for communication.
  std::string json() const;
  // Stops, and writes the events of all ranks as one file. Every rank calls it; the first writes.
  void save(const std::string& file);
  // Stops, and gives what each rank recorded, for the report page. Every rank calls it.
  std::vector<std::string> gather();

 private:
  std::shared_ptr<internal::TraceState> state_;
};

}  // namespace meshtorch
