// Rules that are written dim by dim: what the families of operators that rearrange, cut, join and reduce have
// in common.
#pragma once

#include <initializer_list>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "rules/table.h"

namespace meshtorch::internal {

// Any arguments and any ranks: nothing is split, and a mistake is left for the operator to report.
inline const Rule kWhole = "*_.. -> _..";

inline std::string dim_name(std::size_t index) { return "x" + std::to_string(index); }

inline std::int64_t rank_of(const Shape& shape) { return static_cast<std::int64_t>(shape.size()); }

inline bool fits_a_rule(std::int64_t rank) { return rank <= TensorPattern::kMaxDims; }

// The dim that the argument counts, from the front; nothing if there is no such dim.
inline std::optional<std::int64_t> wrapped(std::int64_t dim, std::int64_t rank) {
  if (dim < -rank || dim >= rank) return std::nullopt;
  return dim < 0 ? dim + rank : dim;
}

// Which dims the list names; nothing if it names one that there is not.
inline std::optional<std::vector<bool>> named_dims(const std::vector<std::int64_t>& dims, std::int64_t rank) {
  std::vector<bool> is_marked(static_cast<std::size_t>(rank));
  for (const std::int64_t dim : dims) {
    const auto at = wrapped(dim, rank);
    if (!at) return std::nullopt;
    is_marked[static_cast<std::size_t>(*at)] = true;
  }
  return is_marked;
}

// One operand and one result, dim by dim.
struct Line {
  std::string operand = "*";
  std::string result = "->";

  void keep(std::size_t d) { add(" " + dim_name(d), " " + dim_name(d)); }
  void keep_whole(std::size_t d) { add(" " + dim_name(d) + "!", " " + dim_name(d)); }
  void add(const std::string& from, const std::string& to) {
    operand += from;
    result += to;
  }
  Rule rule() const { return Rule::parse(operand + " " + result); }
};

// What is pending stays pending: the elements only move.
inline void add_moves(RuleTable& ops, std::initializer_list<std::string_view> names,
                      RuleUse (*choose)(const OpArguments&)) {
  for (const std::string_view op : names) ops.choose(op, choose).keeps(keeps_any());
}

}  // namespace meshtorch::internal
