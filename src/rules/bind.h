// Binding of a rule to the shapes of one call: which dims of which tensors are the same index.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard.h"
#include "meshtorch/placement.h"
#include "meshtorch/rule_notation.h"

namespace meshtorch::internal {

using namespace detail;  // the notation of rules

// What the shapes of a call do not tell; everything that they do tell may be left out. By name.
struct Hints {
  std::map<std::string, std::int64_t> lengths;    // of a run, in dims
  std::map<std::string, std::int64_t> positions;  // the dim of the first operand that holds the
                                                  // name at which it begins; may be negative
  std::map<std::string, std::int64_t> sizes;      // of a dim, or of a part of a compound
};

// A place where a factor stands: slot `slot` of dim `dim`; the slots after it have `inner` indices, those
// before it `outer`.
struct Site {
  int tensor = 0;  // index in BoundRule::tensors
  int dim = 0;
  int slot = 0;
  std::int64_t inner = 1;
  std::int64_t outer = 1;
};

// One index of the operator: "k", "a[1]" of a run, "...[-1]" of an ellipsis.
struct Factor {
  std::string name;
  std::int64_t size = 0;
  bool whole = false;
  int element = 0;          // of a rule that pairs lists, else 0
  std::vector<Site> sites;  // dims that are broadcast along the factor are left out
};

struct BoundTensor {
  enum class Tail : std::uint8_t { none, ones, unknown };

  int argument = 0;  // index of the pattern among the rule's operands, or among its results
  int element = -1;  // index in a list; -1 for a plain tensor
  char mark = ' ';
  Shape shape;             // global; -1 in a result where only the local result tells the size
  Tail tail = Tail::none;  // more dims of a result, of a number only the local result tells
  // As a pending sum or product it is reduced before the call, whatever the mark.
  bool adds_up_first = false;
};

// If all operands, or `operand` alone and the others are whole, are pending by the reduction `of`, the
// results are pending by `as`. Sums and averages need not be named where marks tell.
struct KeptReduction {
  ReduceOp of;
  ReduceOp as;
  int operand = -1;
  bool of_floats = false;  // only: whole numbers wrap
};

// One right way to run the call on an axis, that no name of the rule tells: a placement for each operand and
// each result.
struct ListedOption {
  std::vector<Placement> operands;
  std::vector<Placement> results;
};

// Operand tensors in order (none for an absent optional, each element of a list), then results. A
// list result is one tensor that stands for all its elements, unless an operand is a list too: then
// the rule pairs element with element.
struct BoundRule {
  std::string_view rule;
  bool paired = false;
  int operand_count = 0;
  std::vector<BoundTensor> tensors;
  std::vector<Factor> factors;
  std::vector<KeptReduction> kept;
  // Inner parts of compounds may be split too, which leaves strided shards of the compound.
  bool splits_inner = false;
  std::vector<ListedOption> listed;  // if there are any, they are all there is beside replication

  int result_count() const { return static_cast<int>(tensors.size()) - operand_count; }
  const BoundTensor& result(int index) const { return tensors[operand_count + index]; }
};

// `operands` has the global shapes for each operand pattern: one for a plain tensor, none for an
// absent optional, one for each element of a list. Throws std::invalid_argument when shapes and
// rule disagree, or when a hint is missing.
BoundRule bind(const Rule& rule, const std::vector<std::vector<Shape>>& operands, const Hints& hints = {});

// The result of the rule that tensor number `index` of a call's results belongs to: a list may be one result
// that stands for all its elements.
int result_of_tensor(const BoundRule& bound, int index);

// The global shape of a result, given the shape of a local one on any rank. Throws
// std::invalid_argument if the local result has not the rank that the rule says.
Shape result_shape(const BoundRule& bound, int result, const Shape& local_result_shape);

}  // namespace meshtorch::internal
