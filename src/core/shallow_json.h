// Reading JSON that others wrote: what is nested deeper than any file of ours is refused while it is read,
// since walking through it would use up the stack. No torch.
#pragma once

#include <cstdint>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <string_view>
#include <utility>

namespace meshtorch::internal {

inline constexpr int kMaxJsonDepth = 64;

// `depth`: how many objects and arrays are around the one that starts.
inline void check_json_depth(int depth) {
  if (depth < kMaxJsonDepth) return;
  throw std::invalid_argument("JSON is nested deeper than " + std::to_string(kMaxJsonDepth) + " levels");
}

// Throws what nlohmann::json::parse does, or std::invalid_argument that says how deep is too deep.
template <class Json = nlohmann::json>
Json parse_shallow_json(std::string_view text) {
  using Event = typename Json::parse_event_t;
  return Json::parse(text, [](int depth, Event event, Json&) {
    if (event == Event::object_start || event == Event::array_start) check_json_depth(depth);
    return true;
  });
}

// A whole number that T can hold, else std::invalid_argument: what nlohmann::json makes of 1e300 for an
// integer is not defined, and it cuts off what is too long.
template <class T, class Json>
T whole_number(const Json& value) {
  if (value.is_number_unsigned()) {
    if (const auto number = value.template get<std::uint64_t>(); std::in_range<T>(number))
      return static_cast<T>(number);
  } else if (value.is_number_integer()) {
    if (const auto number = value.template get<std::int64_t>(); std::in_range<T>(number))
      return static_cast<T>(number);
  }
  throw std::invalid_argument(value.dump() + " is no whole number, or beyond those that it may be");
}

// A name from a file in the words of an error, in quotes: what would end or bend the text is escaped.
inline std::string in_quotes(const std::string& name) {
  return nlohmann::json(name).dump(-1, ' ', false, nlohmann::json::error_handler_t::replace);
}

}  // namespace meshtorch::internal
