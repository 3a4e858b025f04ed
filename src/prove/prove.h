// The proof of a rule on one call: everything that the rule claims is tried on simulated ranks and compared
// with the plain operator.
#pragma once

#include <ATen/core/stack.h>

#include <cstdint>
#include <string>
#include <vector>

#include "core/shard.h"
#include "operator/operator.h"

namespace meshtorch::internal {

struct ProofSettings {
  std::vector<Shape> meshes = {{2}, {3}, {4}};
  // Calls on parts of the tensors are proved too: sizes 0, 1, 2, …, below the number of ranks.
  bool with_smaller_calls = true;
  std::uint64_t seed = 1;
};

struct Proof {
  bool is_bound = false;  // the rule fits the call, and the plain operator takes it
  std::int64_t claims = 0;
  // What the dispatcher would not do either: a kernel that needs elements, an argument that cannot be
  // changed.
  std::int64_t passed_over = 0;
  // Each claim that does not hold: operator, rule, option, mesh, arguments, what differs, seed.
  std::vector<std::string> mistakes;
};

// `arguments` are plain, in schema order; what the operator writes to them is written to copies.
Proof prove(const OperatorInfo& info, const RuleEntry& rule, c10::ArrayRef<c10::IValue> arguments,
            const ProofSettings& settings = {});

// The arguments in short: "self (5, 4) double, dim 1, keepdim false".
std::string describe_arguments(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments);

}  // namespace meshtorch::internal
