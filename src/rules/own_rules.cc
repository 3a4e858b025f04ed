// The rules in force.
#include "rules/own_rules.h"

#include <atomic>
#include <deque>
#include <map>
#include <mutex>

namespace meshtorch::internal {
namespace {

struct OwnRules {
  std::mutex mutex;
  std::deque<RuleEntry> entries;  // those that were replaced too: a call may be using one
  std::map<std::string, const RuleEntry*, std::less<>> by_name;
  std::atomic<std::uint64_t> version = 0;
};

OwnRules& own_rules() {
  static OwnRules rules;
  return rules;
}

}  // namespace

const RuleEntry* own_rule(std::string_view op) {
  OwnRules& rules = own_rules();
  const std::scoped_lock lock(rules.mutex);
  const auto found = rules.by_name.find(op);
  return found == rules.by_name.end() ? nullptr : found->second;
}

const RuleEntry* rule_in_force(std::string_view op) {
  const RuleEntry* own = own_rule(op);
  return own != nullptr ? own : rule_table().find(op);
}

void set_own_rule(std::string op, RuleEntry entry) {
  OwnRules& rules = own_rules();
  const std::scoped_lock lock(rules.mutex);
  rules.by_name[std::move(op)] = &rules.entries.emplace_back(std::move(entry));
}

void outdate_decisions() { ++own_rules().version; }

std::uint64_t rules_version() { return own_rules().version; }

}  // namespace meshtorch::internal
