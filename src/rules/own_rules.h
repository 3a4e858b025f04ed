// The rules in force: those that were registered at run time, before those of the table. No torch.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "meshtorch/api.h"
#include "rules/table.h"

namespace meshtorch::internal {

// The rule of the operator, null if it has none. Entries live as long as the program.
const RuleEntry* rule_in_force(std::string_view op);

// The registered rule, null if there is none.
const RuleEntry* own_rule(std::string_view op);

// Before it is in force, the operators have to look it up: see refresh_rules().
MESHTORCH_FOR_PYTHON void set_own_rule(std::string op, RuleEntry entry);

// Grows with each rule that is put in force: what was decided under a smaller number may be out of date.
std::uint64_t rules_version();
// What was decided so far is out of date: rules have changed, or the costs of a mesh.
void outdate_decisions();

}  // namespace meshtorch::internal
