// What is left of a call while its mesh axes are settled one after another.
#include "propagate/narrowing.h"

#include <algorithm>
#include <utility>

namespace meshtorch::internal {

bool Narrowing::is_feasible(const Option& option, std::int64_t extent) const {
  return std::all_of(states_.begin(), states_.end(),
                     [&](const BoundRule& state) { return feasible(option, state, extent); });
}

void Narrowing::apply(const Option& option, std::int64_t extent) {
  if (option.factor < 0) return;
  const auto same_sizes = [](const BoundRule& a, const BoundRule& b) {
    return std::equal(a.factors.begin(), a.factors.end(), b.factors.begin(),
                      [](const Factor& x, const Factor& y) { return x.size == y.size; });
  };
  std::vector<BoundRule> next;
  for (const BoundRule& state : states_) {
    for (std::int64_t index = 0; index < extent; ++index) {
      BoundRule part = narrowed(state, option, extent, index);
      const bool known = std::any_of(next.begin(), next.end(),
                                     [&](const BoundRule& other) { return same_sizes(part, other); });
      if (!known) next.push_back(std::move(part));
    }
  }
  states_ = std::move(next);
}

}  // namespace meshtorch::internal
