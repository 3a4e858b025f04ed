// Writes trace events as JSON. No torch.
#include "debug/trace_events.h"

#include <nlohmann/json.hpp>
#include <set>

namespace meshtorch::internal {

namespace {

using nlohmann::ordered_json;

int row_of(const TraceEvent& event) { return 2 * event.thread + (is_communication(event.name) ? 1 : 0); }

std::string row_name(int row) {
  const std::string what = row % 2 == 1 ? "communication" : "operators";
  return row < 2 ? what : what + ", thread " + std::to_string(row / 2);
}

ordered_json label(const char* what, int rank, int row, const std::string& name) {
  return {{"name", what}, {"ph", "M"}, {"pid", rank}, {"tid", row}, {"args", {{"name", name}}}};
}

}  // namespace

bool is_communication(std::string_view event_name) {
  return event_name.starts_with("c10d::") || event_name.starts_with("meshtorch::wait");
}

std::string trace_objects(const std::vector<TraceEvent>& events, int rank) {
  std::string text = label("process_name", rank, 0, "rank " + std::to_string(rank)).dump();
  std::set<int> rows;
  for (const TraceEvent& event : events) rows.insert(row_of(event));
  for (const int row : rows) text += ",\n" + label("thread_name", rank, row, row_name(row)).dump();
  for (const TraceEvent& event : events) {
    ordered_json object{{"name", event.name},    {"ph", "X"},   {"ts", event.begin},
                        {"dur", event.duration}, {"pid", rank}, {"tid", row_of(event)}};
    if (!event.shapes.empty()) object["args"] = {{"shapes", event.shapes}};
    text += ",\n" + object.dump();
  }
  return text;
}

std::string trace_file(const std::vector<std::string>& objects_of_ranks) {
  std::string text = "{\"displayTimeUnit\": \"ms\", \"traceEvents\": [\n";
  for (std::size_t i = 0; i < objects_of_ranks.size(); ++i)
    text += (i == 0 ? "" : ",\n") + objects_of_ranks[i];
  return text + "\n]}\n";
}

}  // namespace meshtorch::internal
