// The notation of rules.
#include "meshtorch/rule_notation.h"
#include "readers.h"

namespace meshtorch::fuzz {

void read_rule(const std::string& text) {
  const std::string printed = Rule::parse(text).to_string();
  require(Rule::parse(printed).to_string() == printed, "a rule reads back as another");
}

}  // namespace meshtorch::fuzz
