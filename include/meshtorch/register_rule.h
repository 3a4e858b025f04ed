// Rules for operators of your own, and why an operator runs as it does.
#pragma once

#include <ATen/core/ivalue.h>

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/placement.h"
#include "meshtorch/rule_notation.h"

namespace meshtorch {

// What a rule's line does not say.
struct RuleOptions {
  // Which integer argument says at which dim a name stands: {{"s", "dim"}}.
  std::map<std::string, std::string> at = {};
  // Which list argument is as long as a run: {{"n", "normalized_shape"}}.
  std::map<std::string, std::string> rank = {};
  // What the operator does over names that no result has.
  ReduceOp reduce = ReduceOp::sum;
  // Tensor arguments of which only the shape matters.
  std::vector<std::string> shape_only = {};
  // The kernels refuse tensors without elements: where a rank would get one, the call runs replicated.
  bool needs_elements = false;
  // Arguments, plain, to prove the rule on when it is registered; trailing defaults may be left out.
  std::vector<std::vector<c10::IValue>> samples = {};
};

// Gives the operator ("my::scale", "aten::mm", an overload after a dot) a rule, in the place of the one it
// may have, for all ranks of the process. The operands are its tensor arguments in schema order; in-place and
// out= variants follow the functional operator. A literal with a mistake does not compile; a text made at run
// time goes through Rule::parse. In debug mode the rule is proved on the samples, and where it is wrong this
// throws a ValueError that names the option.
MESHTORCH_API void register_rule(std::string_view op, Rule rule, const RuleOptions& options = {});

// Which rules are proved on simulated ranks, on the samples given and on each new call: none, those of
// register_rule (debug mode), or all. The default is `own` in debug builds of meshtorch and where the
// environment has MESHTORCH_CHECK_RULES=1, `all` for MESHTORCH_CHECK_RULES=all, else `none`. Tensors are
// gathered to be compared: a setting for tests.
enum class RuleChecks : std::uint8_t { none, own, all };
MESHTORCH_API void set_rule_checks(RuleChecks checks);
MESHTORCH_API RuleChecks rule_checks();

// The operator's rule, each option with its cost for these arguments, and the choice. Nothing is run or
// communicated. Trailing defaults may be left out.
MESHTORCH_API std::string explain_call(std::string_view op, std::vector<c10::IValue> arguments);

// The same of arguments as they are: explain("aten::mm", x, w).
template <class... Argument>
std::string explain(std::string_view op, const Argument&... arguments) {
  return explain_call(op, {c10::IValue(arguments)...});
}

}  // namespace meshtorch
