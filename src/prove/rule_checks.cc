// The setting that makes rules prove themselves on the calls of a program.
#include <atomic>
#include <cstdlib>
#include <string_view>

#include "meshtorch/register_rule.h"
#include "prove/call_check.h"
#include "prove/prove.h"
#include "rules/own_rules.h"

namespace meshtorch {
using namespace internal;
namespace {

RuleChecks from_environment() {
  const char* value = std::getenv("MESHTORCH_CHECK_RULES");
  if (value == nullptr) {
#ifdef NDEBUG
    return RuleChecks::none;
#else
    return RuleChecks::own;
#endif
  }
  const std::string_view text = value;
  if (text == "all") return RuleChecks::all;
  return text.empty() || text == "0" ? RuleChecks::none : RuleChecks::own;
}

std::atomic<RuleChecks>& setting() {
  static std::atomic<RuleChecks> checks = from_environment();
  return checks;
}

bool is_checked(const OperatorInfo& info) {
  return rule_checks() != RuleChecks::own || own_rule(info.name) != nullptr;
}

void prove_call(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const Proof proof = prove(info, *info.rule, arguments, {.with_smaller_calls = false});
  TORCH_CHECK_VALUE(proof.mistakes.empty(), proof.mistakes.front());
}

}  // namespace

RuleChecks rule_checks() { return setting(); }

void set_rule_checks(RuleChecks checks) {
  setting() = checks;
  set_call_check(initial_call_check());
}

CallCheck internal::initial_call_check() {
  if (rule_checks() == RuleChecks::none) return {};
  return {.check = prove_call, .is_for = is_checked};
}

}  // namespace meshtorch
