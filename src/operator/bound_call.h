// A call with its rule bound to it: what may be split, and what the call of one rank then needs changed.
// Nothing here communicates, so that any rank can be asked about.
#pragma once

#include <memory>
#include <optional>
#include <vector>

#include "operator/decision.h"
#include "operator/stack_arguments.h"
#include "propagate/choose.h"
#include "rules/table.h"

namespace meshtorch::internal {

class BoundCall {
 public:
  // Null if the rule does not fit the shapes of the call. `operands` and `arguments` must outlive it.
  // `results` are those of a run on shapes, if there was one: by their types a sum may not stay pending.
  static std::unique_ptr<BoundCall> bind(const RuleEntry& rule, const OperatorInfo& info,
                                         const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
                                         const std::vector<at::Tensor>& results = {});

  const RuleUse& use() const { return use_; }
  const std::shared_ptr<const BoundRule>& bound() const { return bound_; }
  // For each operand tensor of the rule, its number among the operands of the call.
  const std::vector<std::size_t>& order() const { return order_; }
  const Operand& operand(std::size_t rule_tensor) const { return operands_[order_[rule_tensor]]; }
  // Only the shape of this operand of the rule matters.
  bool is_shape_only(std::size_t rule_tensor) const;

  // False if the operator's kernels need elements, and some rank would have none of a tensor, nor could zeros
  // stand in for them. The same on every rank.
  bool suits_kernels(const Choice& choice, const Shape& mesh) const;

  // What the call of the rank at `coordinate` needs changed; nothing if no change makes it right.
  std::optional<LocalChanges> local_changes(const Choice& choice, const Shape& mesh,
                                            const Shape& coordinate) const;

 private:
  struct Place;  // of one rank under one choice

  BoundCall(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
            const RuleEntry& rule)
      : info_(info), operands_(operands), call_(info, operands, arguments), use_(rule.use(call_)) {}

  void leave_out_by_type(BoundRule& bound, const std::vector<at::Tensor>& results) const;
  bool leaves_a_shard_empty(const Choice& choice, const Shape& mesh) const;
  bool allows_stand_ins(const Choice& choice) const;
  std::optional<StandIn> stand_in_at(const Place& place) const;
  std::int64_t length_of_one(std::size_t tensor, std::size_t dim) const;
  bool apply(const LocalChange& change, const Place& place, LocalChanges& changes) const;
  bool localize_sizes(const LocalChange& change, const Place& place, LocalChanges& changes) const;
  bool mask_indices(const LocalChange& change, const Place& place, LocalChanges& changes) const;
  const Factor* factor_named(const std::string& name) const;
  std::optional<Range> part_of(const std::string& factor, const Place& place) const;

  const OperatorInfo& info_;
  const Operands& operands_;
  StackArguments call_;
  RuleUse use_;
  std::vector<std::size_t> order_;
  std::shared_ptr<const BoundRule> bound_;
};

}  // namespace meshtorch::internal
