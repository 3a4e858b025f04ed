// Everything that a rule claims to be right for one call.
#include "propagate/claims.h"

#include <algorithm>

#include "propagate/narrowing.h"

namespace meshtorch::internal {
namespace {

void add_claims(const Narrowing& rest, ReduceOp contracted, const Shape& mesh, const Choice& so_far,
                std::vector<Choice>& all) {
  const std::size_t axis = so_far.options.size();
  if (axis == mesh.size()) {
    all.push_back(so_far);
    return;
  }
  for (const Option& option : options(rest.largest(), contracted)) {
    if (!rest.is_feasible(option, mesh[axis])) continue;
    Choice choice = so_far;
    for (std::size_t t = 0; t < option.operands.size(); ++t) choice.operands[t].push_back(option.operands[t]);
    for (std::size_t r = 0; r < option.results.size(); ++r) choice.results[r].push_back(option.results[r]);
    choice.options.push_back(option);
    Narrowing next = rest;
    next.apply(option, mesh[axis]);
    add_claims(next, contracted, mesh, choice, all);
  }
}

std::vector<Choice> claims_of_element(const BoundRule& bound, ReduceOp contracted, const Shape& mesh) {
  Choice none;
  none.operands.resize(static_cast<std::size_t>(bound.operand_count));
  none.results.resize(static_cast<std::size_t>(bound.result_count()));
  std::vector<Choice> all;
  add_claims(Narrowing(bound), contracted, mesh, none, all);
  return all;
}

}  // namespace

std::vector<Choice> claims(const BoundRule& bound, ReduceOp contracted, const Shape& mesh) {
  if (!bound.paired) return claims_of_element(bound, contracted, mesh);
  const std::vector<BoundElement> parts = elements(bound);
  std::vector<std::vector<Choice>> lists;
  std::size_t longest = 0;
  for (const BoundElement& part : parts) {
    lists.push_back(claims_of_element(part.rule, contracted, mesh));
    longest = std::max(longest, lists.back().size());
  }
  const Placements whole(mesh.size());
  std::vector<Choice> all;
  for (std::size_t i = 0; i < longest; ++i) {
    Choice choice;
    choice.operands.assign(static_cast<std::size_t>(bound.operand_count), whole);
    choice.results.assign(static_cast<std::size_t>(bound.result_count()), whole);
    for (std::size_t e = 0; e < parts.size(); ++e) {
      const Choice& part = lists[e][(i + e) % lists[e].size()];
      merge(choice, part, parts[e], bound.operand_count);
      for (Option option : part.options) {
        option.why = "element " + std::to_string(e) + ": " + option.why;
        choice.options.push_back(std::move(option));
      }
    }
    all.push_back(std::move(choice));
  }
  return all;
}

}  // namespace meshtorch::internal
