// A look at calls before they are decided, in debug mode and in the tests that prove the rules.
#pragma once

#include <ATen/core/ivalue.h>

#include <functional>

#include "operator/operand.h"

namespace meshtorch::internal {

struct CallCheck {
  // Gets the operator whose rule applies (the functional one for in-place and out= variants) and its
  // arguments, with whole plain tensors. What it throws, the call throws.
  std::function<void(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments)> check;
  // Nothing is gathered for calls of other operators. Empty: of all.
  std::function<bool(const OperatorInfo& info)> is_for;
};

// From here on, the check is called for each call by rule that looks like no earlier one, on every rank. An
// empty check ends that. Tensors are gathered for it, so that all ranks must set it.
void set_call_check(CallCheck check);

// The check that is in force before any is set: what the setting of rule checks asks for. (rule_checks.cc)
CallCheck initial_call_check();

// Called by the handler.
void check_call(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments);

}  // namespace meshtorch::internal
