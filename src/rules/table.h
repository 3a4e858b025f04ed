// The table of rules: which rule an operator has, and what its local call needs changed. Data only, no torch.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <initializer_list>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "core/shard.h"
#include "meshtorch/placement.h"
#include "meshtorch/rule_notation.h"
#include "rules/bind.h"

namespace meshtorch::internal {

using namespace detail;  // the notation of rules

// One call as the rules see it: arguments by their schema names, tensors by their global shapes.
class OpArguments {
 public:
  virtual ~OpArguments() = default;
  virtual std::string_view name() const = 0;  // "view", "sum.dim_IntList"

  // False for an optional tensor that was not given, or an argument that is none.
  virtual bool has(std::string_view argument) const = 0;
  virtual Shape shape(std::string_view tensor) const = 0;
  virtual std::vector<Shape> shapes(std::string_view tensor_list) const = 0;
  virtual std::int64_t integer(std::string_view argument) const = 0;
  virtual bool flag(std::string_view argument) const = 0;
  virtual std::vector<std::int64_t> integers(std::string_view argument) const = 0;
  // For each element of a list of optional tensors: not given, places, or truth values that stand for places.
  enum class Index : std::uint8_t { none, places, mask };
  virtual std::vector<Index> indices(std::string_view /*tensor_list*/) const { return {}; }
  // False for zero, and for a tensor: its values are not looked at.
  virtual bool is_nonzero_number(std::string_view /*argument*/) const { return false; }
  virtual bool is_complex(std::string_view /*tensor*/) const { return false; }
};

// What changes when an operator runs on shards instead of whole tensors.
struct LocalChange {
  enum class Kind : std::uint8_t {
    // The size-list argument becomes the local shape of result 0.
    result_sizes,
    // The integer argument becomes this rank's part of `factor` (the groups of a convolution).
    factor_size,
    // The index argument is shifted by this rank's offset in `factor`; rows of result 0 whose index lies
    // elsewhere become zero.
    mask_indices,
    // The same where the operator writes to the places that the index names: what is meant for places
    // elsewhere is dropped.
    mask_writes,
  };
  Kind kind;
  std::string argument;
  std::string factor = {};
};

// A rule bound to nothing yet, with what the shapes do not tell.
struct RuleUse {
  Rule rule;
  Hints hints = {};
  ReduceOp contracted = ReduceOp::sum;
  std::vector<LocalChange> changes = {};
  // Tensor arguments of which only the shape matters: a pending sum need not be reduced for them.
  std::vector<std::string> shape_only = {};
  // The operator's kernels refuse tensors without elements: no rank may get an empty shard.
  bool needs_elements = false;
  std::vector<KeptReduction> kept = {};
  std::vector<ListedOption> listed = {};
  bool splits_inner = false;  // see BoundRule
};

// The elements of the results are those of the operands, or the same numbers on every rank: what is pending
// stays pending, by whatever reduction.
std::vector<KeptReduction> keeps_any();

// One operator's entry. A rule's operands are the operator's tensor arguments in schema order.
class RuleEntry {
 public:
  explicit RuleEntry(Rule rule) : rule_(rule) {}
  explicit RuleEntry(std::function<RuleUse(const OpArguments&)> choose) : choose_(std::move(choose)) {}

  // The integer argument says at which dim `factor` stands. With several dims in it, see choose().
  RuleEntry& at(std::string factor, std::string argument);
  // The length of the run `factor` is the length of the list argument.
  RuleEntry& rank(std::string factor, std::string argument);
  RuleEntry& reduce(ReduceOp op);
  RuleEntry& local(LocalChange change);
  RuleEntry& shape_only(std::string tensor);
  // The kernels refuse tensors without elements.
  RuleEntry& needs_elements(bool needed = true);
  RuleEntry& keeps(std::vector<KeptReduction> kept);

  // The rule for one call.
  RuleUse use(const OpArguments& call) const;
  // For the page of operators: the rule's text, or "chosen by shape".
  std::string describe() const;

 private:
  std::optional<Rule> rule_;  // none if it is chosen
  std::function<RuleUse(const OpArguments&)> choose_;
  std::map<std::string, std::string> at_;
  std::map<std::string, std::string> rank_;
  ReduceOp contracted_ = ReduceOp::sum;
  std::vector<LocalChange> changes_;
  std::vector<std::string> shape_only_;
  bool needs_elements_ = false;
  std::vector<KeptReduction> kept_;
};

// What several operators that were added together have in common.
class RuleEntries {
 public:
  void push_back(RuleEntry& entry) { entries_.push_back(&entry); }
  void needs_elements() {
    for (RuleEntry* entry : entries_) entry->needs_elements();
  }

 private:
  std::vector<RuleEntry*> entries_;
};

// Operators by name without "aten::", overload after a dot ("add.Tensor"). In-place and out= variants need no
// entry: they are paired from the schemas.
class RuleTable {
 public:
  RuleEntry& add(std::string_view op, Rule rule);
  // One rule for many operators; what else they need must be the same too.
  RuleEntries add(std::initializer_list<std::string_view> ops, Rule rule,
                  const std::vector<KeptReduction>& kept = {});
  // The rule depends on the call.
  RuleEntry& choose(std::string_view op, std::function<RuleUse(const OpArguments&)> choose);
  RuleEntries choose(std::initializer_list<std::string_view> ops,
                     const std::function<RuleUse(const OpArguments&)>& choose);

  const RuleEntry* find(std::string_view op) const;
  const std::map<std::string, RuleEntry, std::less<>>& entries() const { return entries_; }

 private:
  std::map<std::string, RuleEntry, std::less<>> entries_;
};

// The rules of all families, made once.
const RuleTable& rule_table();

// The families, each in its file under rules/ops; rule_table() calls them by name.
void add_pointwise_rules(RuleTable& ops);
void add_matmul_rules(RuleTable& ops);
void add_reduce_rules(RuleTable& ops);
void add_norm_rules(RuleTable& ops);
void add_view_rules(RuleTable& ops);
void add_part_rules(RuleTable& ops);
void add_join_rules(RuleTable& ops);
void add_linalg_rules(RuleTable& ops);
void add_index_rules(RuleTable& ops);
void add_conv_rules(RuleTable& ops);
void add_attention_rules(RuleTable& ops);
void add_loss_rules(RuleTable& ops);
void add_factory_rules(RuleTable& ops);
void add_optimizer_rules(RuleTable& ops);

}  // namespace meshtorch::internal
