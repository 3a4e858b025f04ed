// What is left of a call while its mesh axes are settled one after another.
#pragma once

#include <vector>

#include "rules/options.h"

namespace meshtorch::internal {

class Narrowing {
 public:
  explicit Narrowing(const BoundRule& bound) : states_{bound} {}

  // The call at coordinate 0 of the axes settled so far, whose parts are the largest.
  const BoundRule& largest() const { return states_.front(); }
  // True if the option is right at every coordinate.
  bool is_feasible(const Option& option, std::int64_t extent) const;
  // Settles the next axis.
  void apply(const Option& option, std::int64_t extent);

 private:
  std::vector<BoundRule> states_;  // one for each different set of sizes that some coordinate has
};

}  // namespace meshtorch::internal
