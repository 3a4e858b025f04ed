// What a trace holds, in the order in which it began.
#pragma once

#include <meshtorch/trace.h>

#include <algorithm>
#include <map>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

namespace meshtorch::testing {

// The events of some names, each by the word that is given for it.
inline std::vector<std::string> events_in(const mt::TraceMode& trace,
                                          const std::map<std::string, std::string>& words) {
  std::vector<std::pair<double, std::string>> found;
  const nlohmann::json all = nlohmann::json::parse(trace.json());
  for (const nlohmann::json& event : all.at("traceEvents")) {
    const auto word = words.find(event.at("name").get<std::string>());
    if (event.at("ph") == "X" && word != words.end())
      found.emplace_back(event.at("ts").get<double>(), word->second);
  }
  std::ranges::stable_sort(found, {}, &std::pair<double, std::string>::first);
  std::vector<std::string> events;
  for (auto& [begin, word] : found) events.push_back(std::move(word));
  return events;
}

}  // namespace meshtorch::testing
