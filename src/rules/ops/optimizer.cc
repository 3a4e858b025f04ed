// Rules of the operators on lists that optimizers use: each element is a call of its own.
#include "rules/table.h"

namespace meshtorch::internal {
namespace {

// As with "div": what may be zero does not keep a sum.
RuleUse divide_by_numbers(const OpArguments& call) {
  if (call.is_nonzero_number(call.has("scalar") ? "scalar" : "scalars")) return {"*...[] -> ...[]"};
  return {"...[] -> ...[]"};
}

void add_linear_over_lists(RuleTable& ops) {
  ops.add({"_foreach_neg", "_foreach_clone", "_foreach_mul.Scalar", "_foreach_mul.ScalarList"},
          "*...[] -> ...[]");
  ops.choose({"_foreach_div.Scalar", "_foreach_div.ScalarList"}, divide_by_numbers);
  ops.add({"_foreach_add.List", "_foreach_sub.List", "_foreach_lerp.Scalar", "_foreach_lerp.ScalarList"},
          "+...[], +...[] -> ...[]");
  ops.add("_foreach_mul.List", "*...[], *...[] -> ...[]");
  ops.add("_foreach_mul.Tensor", "*...[], ... -> ...[]");
  ops.add("_foreach_lerp.List", "+...[], +...[], ...[] -> ...[]");
  ops.add({"_foreach_addcmul.Scalar", "_foreach_addcmul.ScalarList"}, "+...[], *...[], *...[] -> ...[]");
  ops.add("_foreach_addcmul.Tensor", "+...[], *...[], *...[], _ -> ...[]");
}

void add_unary_over_lists(RuleTable& ops) {
  ops.add({"_foreach_abs",   "_foreach_acos",    "_foreach_asin", "_foreach_atan",       "_foreach_ceil",
           "_foreach_cos",   "_foreach_cosh",    "_foreach_erf",  "_foreach_erfc",       "_foreach_exp",
           "_foreach_expm1", "_foreach_floor",   "_foreach_frac", "_foreach_lgamma",     "_foreach_log",
           "_foreach_log10", "_foreach_log1p",   "_foreach_log2", "_foreach_reciprocal", "_foreach_round",
           "_foreach_rsqrt", "_foreach_sigmoid", "_foreach_sign", "_foreach_sin",        "_foreach_sinh",
           "_foreach_sqrt",  "_foreach_tan",     "_foreach_tanh", "_foreach_trunc"},
          "...[] -> ...[]");
  ops.add({"_foreach_add.Scalar", "_foreach_add.ScalarList", "_foreach_sub.Scalar", "_foreach_sub.ScalarList",
           "_foreach_clamp_max.Scalar", "_foreach_clamp_max.ScalarList", "_foreach_clamp_min.Scalar",
           "_foreach_clamp_min.ScalarList", "_foreach_maximum.Scalar", "_foreach_maximum.ScalarList",
           "_foreach_minimum.Scalar", "_foreach_minimum.ScalarList", "_foreach_pow.Scalar",
           "_foreach_pow.ScalarList", "_foreach_pow.ScalarAndTensor"},
          "...[] -> ...[]");
  ops.add("_foreach_zero", "*...[] -> ...[]").shape_only("self");
  ops.add("_foreach_max", "a..[] -> []").reduce(ReduceOp::max);
}

void add_binary_over_lists(RuleTable& ops) {
  ops.add({"_foreach_clamp_max.List", "_foreach_clamp_min.List", "_foreach_maximum.List",
           "_foreach_minimum.List", "_foreach_pow.List", "_foreach_div.List"},
          "...[], ...[] -> ...[]");
  ops.add({"_foreach_add.Tensor", "_foreach_div.Tensor"}, "...[], ... -> ...[]");
  ops.add({"_foreach_addcdiv.Scalar", "_foreach_addcdiv.ScalarList"}, "...[], ...[], ...[] -> ...[]");
  ops.add("_foreach_addcdiv.Tensor", "...[], ...[], ...[], _ -> ...[]");
  ops.add("_foreach_copy", "...[], ...[] -> ...[]").shape_only("self");
}

// The steps are counted on each rank; a scale and the mark of an overflow are one number each. State that an
// optimizer does without is an empty list.
void add_fused(RuleTable& ops) {
  for (const std::string op : {"_fused_adam", "_fused_adamw"}) {
    ops.add(op, "a..[], a..[], a..[], a..[], a..[], _..[], _..?, _..? -> a..[], a..[], a..[], a..[], a..[]");
    ops.add(op + ".tensor_lr",
            "a..[], a..[], a..[], a..[], a..[], _..[], _.., _..?, _..? -> a..[], a..[], a..[], a..[], a..[]");
  }
  ops.add("_fused_sgd", "a..[], a..[], a..[], _..?, _..? -> a..[], a..[], a..[]");
  ops.add("_fused_sgd.tensor_lr", "a..[], a..[], a..[], _.., _..?, _..? -> a..[], a..[], a..[]");
}

}  // namespace

void add_optimizer_rules(RuleTable& ops) {
  add_linear_over_lists(ops);
  add_unary_over_lists(ops);
  add_binary_over_lists(ops);
  add_fused(ops);
}

}  // namespace meshtorch::internal
