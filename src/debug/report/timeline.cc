// Makes the timeline's data of the traces of all ranks. No torch.
#include "debug/report/timeline.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <map>

namespace meshtorch::report::internal {
namespace {

using Json = nlohmann::ordered_json;

struct RankEvents {
  int rank = 0;
  std::vector<TraceEvent> events;
};

RankEvents events_of(const std::string& text) {
  const Json json = Json::parse(text);
  RankEvents result{json.at("rank").get<int>(), {}};
  for (const Json& e : json.at("events")) {
    TraceEvent event;
    event.name = e.at(0).get<std::string>();
    event.begin = e.at(1).get<double>();
    event.duration = e.at(2).get<double>();
    event.kind = static_cast<TraceEvent::Kind>(e.at(3).get<int>());
    event.thread = e.at(4).get<int>();
    event.module = e.at(5).get<std::string>();
    event.group = e.at(6).get<std::string>();
    result.events.push_back(std::move(event));
  }
  return result;
}

// What holds others comes before them.
void sort_events(std::vector<TraceEvent>& events) {
  std::stable_sort(events.begin(), events.end(), [](const TraceEvent& a, const TraceEvent& b) {
    return a.begin != b.begin ? a.begin < b.begin : a.duration > b.duration;
  });
}

// The collectives of one group, in the order of each rank: the number of the rank and that of its event.
using Calls = std::map<std::string, std::map<std::size_t, std::vector<std::size_t>>>;

Calls calls_by_group(const std::vector<RankEvents>& ranks) {
  Calls calls;
  for (std::size_t r = 0; r < ranks.size(); ++r) {
    for (std::size_t i = 0; i < ranks[r].events.size(); ++i) {
      const TraceEvent& event = ranks[r].events[i];
      const bool is_pairwise = event.name.starts_with("c10d::send") || event.name.starts_with("c10d::recv");
      if (event.kind == TraceEvent::Kind::collective && !event.group.empty() && !is_pairwise)
        calls[event.group][r].push_back(i);
    }
  }
  return calls;
}

// A rank that calls a collective before another member of its group waits for it: that part becomes an event
// of its own. Groups whose ranks did not call alike are left as they are.
void add_waiting(std::vector<RankEvents>& ranks) {
  std::vector<std::vector<TraceEvent>> waits(ranks.size());
  for (const auto& [group, by_rank] : calls_by_group(ranks)) {
    const std::size_t count = by_rank.begin()->second.size();
    const auto calls_alike = [&](const auto& entry) { return entry.second.size() == count; };
    if (!std::all_of(by_rank.begin(), by_rank.end(), calls_alike)) continue;
    for (std::size_t n = 0; n < count; ++n) {
      double last = 0;
      for (const auto& [r, calls] : by_rank) last = std::max(last, ranks[r].events[calls[n]].begin);
      for (const auto& [r, calls] : by_rank) {
        TraceEvent wait = ranks[r].events[calls[n]];
        wait.duration = std::min(wait.duration, last - wait.begin);
        wait.name = "waiting for other ranks";
        wait.kind = TraceEvent::Kind::wait;
        if (wait.duration > 0) waits[r].push_back(std::move(wait));
      }
    }
  }
  for (std::size_t r = 0; r < ranks.size(); ++r)
    ranks[r].events.insert(ranks[r].events.end(), waits[r].begin(), waits[r].end());
}

// How many events of the same thread that are no scopes hold each.
std::vector<int> depths_of(const std::vector<TraceEvent>& events) {
  std::map<int, std::vector<double>> ends;  // of the events that are open, by thread
  std::vector<int> depths;
  for (const TraceEvent& event : events) {
    auto& open = ends[event.thread];
    while (!open.empty() && open.back() <= event.begin) open.pop_back();
    depths.push_back(static_cast<int>(open.size()));
    if (event.kind != TraceEvent::Kind::scope) open.push_back(event.begin + event.duration);
  }
  return depths;
}

class Names {
 public:
  std::size_t number(const std::string& name) {
    const auto [found, is_new] = numbers_.emplace(name, list_.size());
    if (is_new) list_.push_back(name);
    return found->second;
  }
  const std::vector<std::string>& list() const { return list_; }

 private:
  std::map<std::string, std::size_t> numbers_;
  std::vector<std::string> list_;
};

// The duration below which events are left out, so that at most `most` stay. Scopes always do.
double shortest_shown(const std::vector<RankEvents>& ranks, std::size_t most) {
  std::vector<double> durations;
  for (const RankEvents& rank : ranks) {
    for (const TraceEvent& event : rank.events) durations.push_back(event.duration);
  }
  if (durations.size() <= most) return 0;
  const auto nth = durations.begin() + static_cast<std::ptrdiff_t>(most);
  std::nth_element(durations.begin(), nth, durations.end(), std::greater<>());
  return std::nextafter(*nth, std::numeric_limits<double>::infinity());
}

double tenths(double microseconds) { return std::round(microseconds * 10) / 10; }

}  // namespace

std::string trace_text(const std::vector<TraceEvent>& events, int rank) {
  Json list = Json::array();
  for (const TraceEvent& e : events)
    list.push_back({e.name, e.begin, e.duration, static_cast<int>(e.kind), e.thread, e.module, e.group});
  return Json{{"rank", rank}, {"events", std::move(list)}}.dump(-1, ' ', false,
                                                                Json::error_handler_t::replace);
}

Json timeline_json(const std::vector<std::string>& texts, std::size_t most) {
  std::vector<RankEvents> ranks;
  double first = std::numeric_limits<double>::infinity();
  for (const std::string& text : texts) {
    ranks.push_back(events_of(text));
    sort_events(ranks.back().events);
    if (!ranks.back().events.empty()) first = std::min(first, ranks.back().events.front().begin);
  }
  add_waiting(ranks);
  for (RankEvents& rank : ranks) sort_events(rank.events);
  const double shortest = shortest_shown(ranks, most);
  Names names, modules;
  Json list = Json::array();
  std::size_t left_out = 0;
  for (const RankEvents& rank : ranks) {
    Json numbers = Json::array();
    const std::vector<int> depths = depths_of(rank.events);
    for (std::size_t i = 0; i < rank.events.size(); ++i) {
      const TraceEvent& e = rank.events[i];
      if (e.duration < shortest && e.kind != TraceEvent::Kind::scope) {
        ++left_out;
        continue;
      }
      numbers.push_back(names.number(e.name));
      numbers.push_back(tenths(e.begin - first));
      numbers.push_back(tenths(e.duration));
      numbers.push_back(static_cast<int>(e.kind));
      numbers.push_back(depths[i]);
      numbers.push_back(e.module.empty() ? Json(-1) : Json(modules.number(e.module)));
    }
    list.push_back({{"rank", rank.rank}, {"events", std::move(numbers)}});
  }
  return {{"names", names.list()},
          {"modules", modules.list()},
          {"shortest", shortest},
          {"left_out", left_out},
          {"ranks", std::move(list)}};
}

}  // namespace meshtorch::report::internal
