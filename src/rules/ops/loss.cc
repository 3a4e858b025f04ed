// Rules of losses and their gradients, by the kind of their reduction. A mean is not split: its
// parts would have to know the whole count.
#include <algorithm>

#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// at::Reduction
constexpr std::int64_t kNone = 0, kMean = 1, kSum = 2;

bool have_one_shape(const OpArguments& call, std::initializer_list<const char*> tensors) {
  const Shape shape = call.shape("self");
  return std::all_of(tensors.begin(), tensors.end(),
                     [&](const char* tensor) { return !call.has(tensor) || call.shape(tensor) == shape; });
}

// ---- element by element: input, target, and weights if any ----

struct ElementwiseRules {
  Rule none, sum, whole;
};

RuleUse elementwise(const OpArguments& call, const ElementwiseRules& rules,
                    std::initializer_list<const char*> others) {
  const std::int64_t reduction = call.integer("reduction");
  if (reduction == kNone) return {rules.none};
  return {reduction == kSum && have_one_shape(call, others) ? rules.sum : rules.whole};
}

// The gradient of a sum is one number; where shapes differ, all of them are broadcast.
RuleUse elementwise_backward(const OpArguments& call, const ElementwiseRules& rules) {
  const std::int64_t reduction = call.integer("reduction");
  if (!have_one_shape(call, {"target", "weight"})) return {rules.whole};
  if (reduction == kNone) {
    return {call.shape("grad_output") == call.shape("self") ? rules.none : rules.whole};
  }
  return {reduction == kSum && call.shape("grad_output").empty() ? rules.sum : rules.whole};
}

void add_elementwise_losses(RuleTable& ops) {
  ops.choose({"mse_loss", "smooth_l1_loss", "huber_loss", "soft_margin_loss"}, [](const OpArguments& call) {
    return elementwise(call, {"..., ... -> ...", "a.., a.. ->", "_.., _.. -> _.."}, {"target"});
  });
  ops.choose("binary_cross_entropy", [](const OpArguments& call) {
    return elementwise(call, {"..., ..., ...? -> ...", "a.., a.., a..? ->", "_.., _.., _..? -> _.."},
                       {"target", "weight"});
  });
  ops.choose("binary_cross_entropy_with_logits", [](const OpArguments& call) {
    return elementwise(
        call, {"..., ..., ...?, ...? -> ...", "a.., a.., a..?, a..? ->", "_.., _.., _..?, _..? -> _.."},
        {"target", "weight", "pos_weight"});
  });
  ops.choose(
      {"mse_loss_backward", "smooth_l1_loss_backward", "huber_loss_backward", "soft_margin_loss_backward"},
      [](const OpArguments& call) {
        return elementwise_backward(call,
                                    {"*a.., a.., a.. -> a..", "*, a.., a.. -> a..", "_.., _.., _.. -> _.."});
      });
  ops.choose("binary_cross_entropy_backward", [](const OpArguments& call) {
    return elementwise_backward(
        call, {"*a.., a.., a.., a..? -> a..", "*, a.., a.., a..? -> a..", "_.., _.., _.., _..? -> _.."});
  });
}

// ---- negative log-likelihood: classes in dim 1, any space after them ----

bool is_batched_nll(const OpArguments& call) {
  const Shape self = call.shape("self");
  const Shape target = call.shape("target");
  return self.size() >= 2 && target.size() + 1 == self.size() && self[0] == target[0] &&
         std::equal(self.begin() + 2, self.end(), target.begin() + 1, target.end());
}

// The second result, the total weight, is a sum, and zero where nothing is reduced.
RuleUse nll_loss(const OpArguments& call) {
  const std::int64_t reduction = call.integer("reduction");
  if (is_batched_nll(call)) {
    if (reduction == kNone) return {"n c! s.., n s.., c!? -> n s.., +"};
    if (reduction == kSum) return {"n c! s.., n s.., c!? -> ,"};
  }
  return {"_.., _.., _..? -> _.., _.."};
}

// The gradient of a mean divides by the total weight, which it is given.
RuleUse nll_loss_backward(const OpArguments& call) {
  const std::int64_t reduction = call.integer("reduction");
  if (!is_batched_nll(call)) return {"_.., _.., _.., _..?, _.. -> _.."};
  RuleUse use{reduction == kNone ? Rule("*n s.., n c! s.., n s.., c!?, _.. -> n c! s..")
                                 : Rule("*, n c! s.., n s.., c!?, _.. -> n c! s..")};
  use.shape_only = {"self"};
  if (reduction != kMean) use.shape_only.emplace_back("total_weight");
  return use;
}

}  // namespace

void add_loss_rules(RuleTable& ops) {
  add_elementwise_losses(ops);
  ops.choose({"nll_loss_forward", "nll_loss2d_forward"}, nll_loss);
  ops.choose({"nll_loss_backward", "nll_loss2d_backward"}, nll_loss_backward);
}

}  // namespace meshtorch::internal
