// The options of a bound rule for one mesh axis: every way to split the call that is right.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "meshtorch/placement.h"
#include "rules/bind.h"

namespace meshtorch::internal {

// One independent problem of a rule that pairs lists: tensor i of `rule` is tensor `tensors[i]` of
// the rule it was taken from. Plain operands are part of every element.
struct BoundElement {
  BoundRule rule;
  std::vector<int> tensors;
};

// The elements of a paired rule; of any other, the rule itself.
std::vector<BoundElement> elements(const BoundRule& bound);

// Placements on one mesh axis for the tensors of a BoundRule.
struct Option {
  Placements operands;
  Placements results;
  int factor = -1;  // index in BoundRule::factors of what is split; -1: nothing
  std::string why;  // "replicate", "split m", "split k (contracted)", "linear"

  std::string to_string() const;  // "S(1) S(0) -> P(sum): split k (contracted)"
};

// All of them, "replicate" first. `contracted` is the reduction that the operator itself does over
// names that no result holds. The list does not depend on the mesh: ask feasible() before use.
// `bound` must be one element of a paired rule, or a rule that pairs nothing.
std::vector<Option> options(const BoundRule& bound, ReduceOp contracted = ReduceOp::sum);

// True if the option is right on an axis of `extent` ranks: chunks of a compound dim lie where the
// chunks of its outer part lie; the parts of a mean are equal; none of a min or a max is empty.
bool feasible(const Option& option, const BoundRule& bound, std::int64_t extent);

// What is left of the call on the ranks at `index` of an axis of `extent` ranks, to which the
// option was applied: the same rule, bound to smaller tensors.
BoundRule narrowed(const BoundRule& bound, const Option& option, std::int64_t extent, std::int64_t index);

}  // namespace meshtorch::internal
