// The table of rules: entries by name, and the rule of one call.
#include "rules/table.h"

#include <stdexcept>

namespace meshtorch::internal {

RuleEntry& RuleEntry::at(std::string factor, std::string argument) {
  at_[std::move(factor)] = std::move(argument);
  return *this;
}

RuleEntry& RuleEntry::rank(std::string factor, std::string argument) {
  rank_[std::move(factor)] = std::move(argument);
  return *this;
}

RuleEntry& RuleEntry::reduce(ReduceOp op) {
  contracted_ = op;
  return *this;
}

RuleEntry& RuleEntry::local(LocalChange change) {
  changes_.push_back(std::move(change));
  return *this;
}

RuleEntry& RuleEntry::shape_only(std::string tensor) {
  shape_only_.push_back(std::move(tensor));
  return *this;
}

RuleEntry& RuleEntry::needs_elements(bool needed) {
  needs_elements_ = needed;
  return *this;
}

RuleEntry& RuleEntry::keeps(std::vector<KeptReduction> kept) {
  kept_ = std::move(kept);
  return *this;
}

std::vector<KeptReduction> keeps_any() {
  return {
      {ReduceOp::min, ReduceOp::min}, {ReduceOp::max, ReduceOp::max}, {ReduceOp::product, ReduceOp::product}};
}

RuleUse RuleEntry::use(const OpArguments& call) const {
  if (choose_) {
    RuleUse use = choose_(call);
    use.needs_elements |= needs_elements_;
    if (use.kept.empty()) use.kept = kept_;
    return use;
  }
  RuleUse use{*rule_, {}, contracted_, changes_, shape_only_, needs_elements_, kept_};
  for (const auto& [factor, argument] : at_) use.hints.positions[factor] = call.integer(argument);
  for (const auto& [factor, argument] : rank_) {
    use.hints.lengths[factor] = static_cast<std::int64_t>(call.integers(argument).size());
  }
  return use;
}

std::string RuleEntry::describe() const { return choose_ ? "chosen by shape" : rule_->to_string(); }

RuleEntry& RuleTable::add(std::string_view op, Rule rule) {
  const auto [entry, is_new] = entries_.emplace(std::string(op), RuleEntry(rule));
  if (!is_new) throw std::logic_error("meshtorch: two rules for " + std::string(op));
  return entry->second;
}

RuleEntries RuleTable::add(std::initializer_list<std::string_view> ops, Rule rule,
                           const std::vector<KeptReduction>& kept) {
  RuleEntries entries;
  for (const std::string_view op : ops) entries.push_back(add(op, rule).keeps(kept));
  return entries;
}

RuleEntry& RuleTable::choose(std::string_view op, std::function<RuleUse(const OpArguments&)> choose) {
  const auto [entry, is_new] = entries_.emplace(std::string(op), RuleEntry(std::move(choose)));
  if (!is_new) throw std::logic_error("meshtorch: two rules for " + std::string(op));
  return entry->second;
}

RuleEntries RuleTable::choose(std::initializer_list<std::string_view> ops,
                              const std::function<RuleUse(const OpArguments&)>& choose_rule) {
  RuleEntries entries;
  for (const std::string_view op : ops) entries.push_back(choose(op, choose_rule));
  return entries;
}

const RuleEntry* RuleTable::find(std::string_view op) const {
  const auto found = entries_.find(op);
  return found == entries_.end() ? nullptr : &found->second;
}

const RuleTable& rule_table() {
  static const RuleTable table = [] {
    RuleTable ops;
    add_pointwise_rules(ops);
    add_matmul_rules(ops);
    add_reduce_rules(ops);
    add_view_rules(ops);
    add_part_rules(ops);
    add_join_rules(ops);
    add_linalg_rules(ops);
    add_index_rules(ops);
    add_loss_rules(ops);
    add_factory_rules(ops);
    add_optimizer_rules(ops);
    add_norm_rules(ops);
    add_conv_rules(ops);
    add_attention_rules(ops);
    return ops;
  }();
  return table;
}

}  // namespace meshtorch::internal
