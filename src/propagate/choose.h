// The choice of the cheapest way to run one call, mesh axis by mesh axis.
#pragma once

#include <cstdint>
#include <optional>
#include <vector>

#include "meshtorch/placement.h"
#include "propagate/cost.h"
#include "rules/options.h"

namespace meshtorch::internal {

// The call as it comes. "For each operand" and "for each result" follow the order of
// BoundRule::tensors; all that may be empty then takes its default for every tensor.
struct Situation {
  Shape mesh;                            // the extent of each axis
  std::vector<Placements> operands;      // for each operand, normalized, one for each axis
  std::vector<AxisCost> axis_costs;      // for each axis, or empty
  std::vector<std::int64_t> item_sizes;  // for each operand, then each result, in bytes, or empty
  std::vector<bool> pinned;  // for each operand, or empty: it keeps its placements (in-place self)
  std::vector<bool> kept;    // for each operand, or empty: where it is split it stays so, if that can be
  std::vector<std::optional<Placements>> wanted_results;  // for each result, or empty: what it must
                                                          // have (in-place self, out=)
  ReduceOp contracted = ReduceOp::sum;
};

struct Choice {
  std::vector<Placements> operands;  // bring each operand to these first
  std::vector<Placements> results;
  std::vector<Option> options;  // for each axis; of a paired rule, all elements in one
  double cost = 0;              // seconds, estimated
};

// An option that was possible on an axis, and what it would cost there.
struct PricedOption {
  Option option;
  bool communicates = false;
  double seconds = 0;  // estimated, what results cost later included
  bool is_chosen = false;
};

// On each axis, from left to right: an option that leaves what is to be kept wins over one that does not;
// then one under which nothing that is split has to be sent; among equals the one that sends least, with what
// the results' placements will cost later, so that what is pending is reduced where it is smallest; among
// those again the one that sends nothing now, that copies least, and that changes the
// fewest operands. The answer is the same on every rank. Empty only if what is pinned or wanted leaves no
// option. `considered` gets the options of each axis, for each element of a paired rule in turn.
std::optional<Choice> choose(const BoundRule& bound, const Situation& situation,
                             std::vector<std::vector<PricedOption>>* considered = nullptr);

// Takes over what was chosen for one element of a paired rule of `operand_count` operands.
void merge(Choice& into, const Choice& part, const BoundElement& element, int operand_count);

}  // namespace meshtorch::internal
