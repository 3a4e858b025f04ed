// The table of rules: each family's rule for a call and the options it gives; every rule binds.
#include <gtest/gtest.h>

#include <map>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "rules/bind.h"
#include "rules/options.h"
#include "rules/table.h"

namespace meshtorch {
using namespace internal;
namespace {

using Numbers = std::vector<std::int64_t>;

// A call from literals: tensors in schema order, then all other arguments as lists of numbers.
class FakeCall : public OpArguments {
 public:
  struct Tensors {
    std::string argument;
    std::vector<Shape> shapes;  // none: absent
    bool list = false;
  };

  FakeCall(std::string name, std::vector<Tensors> tensors, std::map<std::string, Numbers> numbers)
      : name_(std::move(name)), tensors_(std::move(tensors)), numbers_(std::move(numbers)) {}

  std::string_view name() const override { return name_; }
  bool has(std::string_view argument) const override {
    for (const Tensors& t : tensors_) {
      if (t.argument == argument) return t.list || !t.shapes.empty();
    }
    return numbers_.contains(std::string(argument));
  }
  Shape shape(std::string_view tensor) const override { return shapes(tensor).at(0); }
  std::vector<Shape> shapes(std::string_view tensor) const override {
    for (const Tensors& t : tensors_) {
      if (t.argument == tensor) return t.shapes;
    }
    throw std::out_of_range("no tensor " + std::string(tensor));
  }
  std::int64_t integer(std::string_view argument) const override { return integers(argument).at(0); }
  bool flag(std::string_view argument) const override { return integer(argument) != 0; }
  Numbers integers(std::string_view argument) const override { return numbers_.at(std::string(argument)); }

  std::vector<std::vector<Shape>> operands() const {
    std::vector<std::vector<Shape>> all;
    for (const Tensors& t : tensors_) all.push_back(t.shapes);
    return all;
  }

 private:
  std::string name_;
  std::vector<Tensors> tensors_;
  std::map<std::string, Numbers> numbers_;
};

FakeCall::Tensors tensor(std::string argument, Shape shape) {
  return {std::move(argument), {std::move(shape)}};
}
FakeCall::Tensors absent(std::string argument) { return {std::move(argument), {}}; }
FakeCall::Tensors list(std::string argument, std::vector<Shape> shapes) {
  return {std::move(argument), std::move(shapes), true};
}

RuleUse use_of(const FakeCall& call) {
  const RuleEntry* entry = rule_table().find(call.name());
  if (entry == nullptr) throw std::out_of_range("no rule for " + std::string(call.name()));
  return entry->use(call);
}

std::string rule_of(const FakeCall& call) { return use_of(call).rule.to_string(); }

// The rule of a call and, line by line, its options; where lists are paired, those of each pair.
std::string listed(const FakeCall& call) {
  const RuleUse use = use_of(call);
  std::string text = use.rule.to_string() + "\n";
  const BoundRule bound = internal::bind(use.rule, call.operands(), use.hints);
  for (const BoundElement& part : elements(bound)) {
    for (const Option& option : options(part.rule, use.contracted)) {
      if (option.why != "replicate") text += option.to_string() + "\n";
    }
  }
  return text;
}

// The reductions that average are those that add, once more.
std::string without_averages(const std::string& text) {
  std::string kept;
  for (std::size_t at = 0; at < text.size();) {
    const std::size_t end = text.find('\n', at) + 1;
    const std::string line = text.substr(at, end - at);
    if (line.find("P(avg)") == std::string::npos) kept += line;
    at = end;
  }
  return kept;
}

std::string printed(const FakeCall& call) { return without_averages(listed(call)); }

std::string changes_of(const FakeCall& call) {
  std::string text;
  for (const LocalChange& change : use_of(call).changes) {
    const char* kinds[] = {"result_sizes", "factor_size", "mask_indices"};
    text += std::string(kinds[static_cast<std::size_t>(change.kind)]) + " " + change.argument;
    if (!change.factor.empty()) text += " " + change.factor;
  }
  return text;
}

// ---- every rule ----

// A tensor that fits the pattern: runs of length 1, dims of size 4.
Shape shape_for(const TensorPattern& pattern) {
  Shape shape;
  for (int d = 0; d < pattern.dim_count; ++d) {
    const DimPattern& dim = pattern.dims[static_cast<std::size_t>(d)];
    const bool is_one = dim.kind == DimKind::one || dim.kind == DimKind::one_run;
    std::int64_t size = is_one ? 1 : 4;
    for (int k = 1; k < dim.name_count; ++k) size *= 4;
    if (dim.kind == DimKind::ellipsis) shape.push_back(4);
    shape.push_back(size);
  }
  return shape;
}

void expect_binding(const Rule& rule, bool with_optionals) {
  const RulePatterns patterns = rule.patterns();
  Hints hints;
  std::vector<std::vector<Shape>> operands;
  for (int t = 0; t < patterns.operand_count; ++t) {
    const TensorPattern& pattern = patterns.tensors[static_cast<std::size_t>(t)];
    const Shape shape = shape_for(pattern);
    operands.emplace_back(pattern.list ? 2U : (!pattern.optional || with_optionals ? 1U : 0U), shape);
    for (int d = 0; d < pattern.dim_count; ++d) {
      const DimPattern& dim = pattern.dims[static_cast<std::size_t>(d)];
      if (dim.kind == DimKind::run) hints.lengths[std::string(dim.names[0])] = 1;
    }
  }
  const BoundRule bound = internal::bind(rule, operands, hints);
  for (const BoundElement& part : elements(bound)) EXPECT_FALSE(options(part.rule).empty());
}

TEST(RuleTable, EveryFixedRuleBinds) {
  for (const auto& [op, entry] : rule_table().entries()) {
    SCOPED_TRACE(op);
    if (entry.describe() == "chosen by shape") continue;
    const Rule rule = Rule::parse(entry.describe());
    EXPECT_NO_THROW(expect_binding(rule, true));
    EXPECT_NO_THROW(expect_binding(rule, false));
  }
}

TEST(RuleTable, HasNoRuleForAnUnknownOperator) { EXPECT_EQ(rule_table().find("no_such_operator"), nullptr); }

TEST(RuleTable, HasNoRuleForWhatIsRandom) {
  for (const char* op : {"bernoulli.p", "native_dropout", "rand_like", "normal_functional"}) {
    EXPECT_EQ(rule_table().find(op), nullptr) << op;
  }
}

// ---- pointwise ----

TEST(PointwiseRules, AddKeepsAPendingSumOnlyIfBothTermsArePending) {
  const FakeCall call("add.Tensor", {tensor("self", {4, 6}), tensor("other", {6})}, {});
  EXPECT_EQ(printed(call),
            "+..., +... -> ...\n"
            "S(0) R -> S(0): split ...[-2]\n"
            "S(1) S(0) -> S(1): split ...[-1]\n"
            "P(sum) P(sum) -> P(sum): linear\n");
}

TEST(PointwiseRules, AddOfANumberKeepsNoPendingSum) {
  const FakeCall call("add.Scalar", {tensor("self", {4})}, {});
  EXPECT_EQ(printed(call), "... -> ...\nS(0) -> S(0): split ...[-1]\n");
}

TEST(PointwiseRules, ACastKeepsAPendingSumUnlessItGoesToWholeNumbers) {
  const auto cast_to = [](const Numbers& dtype) {
    std::map<std::string, Numbers> numbers;
    if (!dtype.empty()) numbers["dtype"] = dtype;
    return rule_of(FakeCall("_to_copy", {tensor("self", {4})}, numbers));
  };
  constexpr std::int64_t kInt64 = 4, kFloat = 6, kBool = 11, kBFloat16 = 15;
  EXPECT_EQ(cast_to({}), "*... -> ...");
  EXPECT_EQ(cast_to({kFloat}), "*... -> ...");
  EXPECT_EQ(cast_to({kBFloat16}), "*... -> ...");
  EXPECT_EQ(cast_to({kInt64}), "... -> ...");
  EXPECT_EQ(cast_to({kBool}), "... -> ...");
}

TEST(PointwiseRules, WhatIsWrittenOverIsNeededForItsShapeOnly) {
  const FakeCall call("copy", {tensor("self", {4}), tensor("src", {4})}, {});
  EXPECT_EQ(use_of(call).shape_only, std::vector<std::string>{"self"});
}

// ---- products ----

TEST(MatmulRules, AddmmSharesTheBiasWhereTheProductIsContracted) {
  const FakeCall call("addmm", {tensor("self", {6}), tensor("mat1", {4, 8}), tensor("mat2", {8, 6})}, {});
  EXPECT_EQ(printed(call),
            "+..., *m k, *k n -> m n\n"
            "S(0) R S(1) -> S(1): split n\n"
            "R S(0) R -> S(0): split m\n"
            "P(sum) S(1) S(0) -> P(sum): split k (contracted)\n"
            "P(sum) P(sum) R -> P(sum): linear\n"
            "P(sum) R P(sum) -> P(sum): linear\n");
}

TEST(MatmulRules, AddmvWithABroadcastBiasIsNotSplit) {
  const FakeCall call("addmv", {tensor("self", {1}), tensor("mat", {4, 8}), tensor("vec", {8})}, {});
  EXPECT_EQ(rule_of(call), "_.., _.., _.. -> _..");
}

// ---- reductions ----

FakeCall reduction(const std::string& op, const Shape& shape, const Numbers& dims, bool keepdim) {
  return {op, {tensor("self", shape)}, {{"dim", dims}, {"keepdim", {keepdim ? 1 : 0}}}};
}

TEST(ReduceRules, SumOverASplitDimIsAPendingSum) {
  EXPECT_EQ(printed(reduction("sum.dim_IntList", {4, 6, 5}, {1}, true)),
            "*x0 x1 x2 -> x0 1 x2\n"
            "S(0) -> S(0): split x0\n"
            "S(1) -> P(sum): split x1 (contracted)\n"
            "S(2) -> S(2): split x2\n"
            "P(sum) -> P(sum): linear\n");
  EXPECT_EQ(rule_of(reduction("sum.dim_IntList", {4, 6, 5}, {0, -1}, false)), "*x0 x1 x2 -> x1");
  EXPECT_EQ(rule_of(reduction("sum.dim_IntList", {4, 6}, {}, false)), "*x0 x1 ->");
  EXPECT_EQ(rule_of(reduction("sum.dim_IntList", {}, {0}, true)), "* ->");
}

TEST(ReduceRules, ASumOfTensorsCastToWholeNumbersIsNotLinear) {
  const FakeCall call("sum", {tensor("self", {4})}, {{"dtype", {4}}});
  EXPECT_EQ(rule_of(call), "x0 ->");
}

TEST(ReduceRules, AmaxOverASplitDimIsAPendingMaximum) {
  EXPECT_EQ(printed(reduction("amax", {4, 6}, {1}, false)),
            "x0 x1 -> x0\n"
            "S(0) -> S(0): split x0\n"
            "S(1) -> P(max): split x1 (contracted)\n");
}

TEST(ReduceRules, MaxWithIndicesNeedsItsDimWhole) {
  EXPECT_EQ(printed(reduction("max.dim", {4, 6}, {-1}, false)),
            "x0 x1! -> x0, x0\nS(0) -> S(0) S(0): split x0\n");
}

TEST(ReduceRules, AnEmptyListOfDimsIsLeftToTheOperatorsThatReadItTheirOwnWay) {
  EXPECT_EQ(rule_of(reduction("any.dims", {4, 6}, {}, false)), "_.. -> _..");
}

TEST(ReduceRules, ADimThatThereIsNotIsLeftForTheOperatorToReport) {
  EXPECT_EQ(rule_of(reduction("amax", {4, 6}, {2}, false)), "_.. -> _..");
}

TEST(ReduceRules, TopkGivesADimOfAnotherSize) {
  const FakeCall call("topk", {tensor("self", {4, 6})}, {{"dim", {1}}, {"k", {2}}});
  EXPECT_EQ(rule_of(call), "x0 x1! -> x0 _, x0 _");
}

// ---- views ----

FakeCall view_call(const Shape& from, const Numbers& size) {
  return {"view", {tensor("self", from)}, {{"size", size}}};
}

TEST(ViewRules, ViewSplitsOneDimIntoSeveral) {
  EXPECT_EQ(printed(view_call({24, 5}, {4, -1, 5})),
            "*(x0 x1) x2 -> x0 x1 x2\n"
            "S(0) -> S(0): split x0\n"
            "S(1) -> S(2): split x2\n"
            "P(sum) -> P(sum): linear\n");
  EXPECT_EQ(changes_of(view_call({24, 5}, {4, -1, 5})), "result_sizes size");
}

TEST(ViewRules, ViewJoinsDims) {
  EXPECT_EQ(rule_of(view_call({4, 6, 5}, {24, 5})), "*x0 x1 x2 -> (x0 x1) x2");
}

TEST(ViewRules, ViewFindsTheNamesThatBothShapesAreMadeOf) {
  EXPECT_EQ(rule_of(view_call({12, 2}, {4, 6})), "*(x0 x1) x2 -> x0 (x1 x2)");
}

TEST(ViewRules, ViewAddsAndDropsDimsOfSizeOne) {
  EXPECT_EQ(rule_of(view_call({4, 1, 6}, {1, 4, 6, 1})), "*x0 1 x1 -> 1 x0 x1 1");
  EXPECT_EQ(rule_of(view_call({2, 1, 3, 4}, {6, 4})), "*x0 1 x1 x2 -> (x0 x1) x2");
  EXPECT_EQ(rule_of(view_call({}, {1, 1})), "* -> 1 1");
}

TEST(ViewRules, ViewKeepsASplitInFrontOfWhatHasNoCommonNames) {
  EXPECT_EQ(rule_of(view_call({48, 35, 26}, {24, 4, 35, 13})), "*(x0 x1!) _ _ -> x0 _ _ _");
  EXPECT_EQ(rule_of(view_call({12, 5, 4, 7}, {6, 4, 10, 7})), "*(x0 x1!) _ _ x2 -> x0 _ _ x2");
  EXPECT_EQ(rule_of(view_call({6, 4, 10}, {12, 5, 4})), "*x0 (x1 x2!) _ -> (x0 x1) _ _");
}

TEST(ViewRules, ViewDoesNotSplitWhatHasNoCommonNames) {
  EXPECT_EQ(rule_of(view_call({6, 4, 5}, {8, 3, 5})), "*_ _ x0 -> _ _ x0");
  EXPECT_EQ(rule_of(view_call({6, 4, 5}, {8, -1, 5})), "*_.. -> _..");
}

TEST(ViewRules, ViewOfNothingOrToAWrongSizeIsNotSplit) {
  EXPECT_EQ(rule_of(view_call({0, 4}, {4, 0})), "*_.. -> _..");
  EXPECT_EQ(rule_of(view_call({4, 4}, {5, 3})), "*_.. -> _..");
  EXPECT_EQ(rule_of(view_call({4, 4}, {-1, 5})), "*_.. -> _..");
}

TEST(ViewRules, ExpandKeepsTheDimsThatItDoesNotRepeat) {
  const FakeCall call("expand", {tensor("self", {4, 1, 5})}, {{"size", {2, -1, 3, 5}}});
  EXPECT_EQ(rule_of(call), "*x1 1 x3 -> _ x1 _ x3");
  EXPECT_EQ(changes_of(call), "result_sizes size");
}

TEST(ViewRules, PermuteMovesTheSplit) {
  const FakeCall call("permute", {tensor("self", {4, 6, 5})}, {{"dims", {2, 0, -2}}});
  EXPECT_EQ(printed(call),
            "*x0 x1 x2 -> x2 x0 x1\n"
            "S(0) -> S(1): split x0\n"
            "S(1) -> S(2): split x1\n"
            "S(2) -> S(0): split x2\n"
            "P(sum) -> P(sum): linear\n");
}

TEST(ViewRules, SqueezeKeepsDimsWholeThatCouldHaveSizeOneOnOneRank) {
  const FakeCall all("squeeze_copy", {tensor("self", {2, 1, 3})}, {});
  const FakeCall some("squeeze.dims", {tensor("self", {2, 1, 3})}, {{"dim", {1, 2}}});
  EXPECT_EQ(rule_of(all), "*x0! 1 x2! -> x0! x2!");
  EXPECT_EQ(rule_of(some), "*x0 1 x2! -> x0 x2!");
}

TEST(ViewRules, ASliceOfTheWholeDimKeepsItsSplit) {
  const auto slice = [](std::int64_t start, std::int64_t end) {
    return rule_of(FakeCall("slice.Tensor", {tensor("self", {4, 6})},
                            {{"dim", {1}}, {"start", {start}}, {"end", {end}}, {"step", {1}}}));
  };
  EXPECT_EQ(slice(0, 6), "*... -> ...");
  EXPECT_EQ(slice(0, 5), "*a.. s! b.. -> a.. _ b..");
  EXPECT_EQ(slice(1, 6), "*a.. s! b.. -> a.. _ b..");
}

TEST(ViewRules, TheGradientOfASliceIsMadeInLocalSizes) {
  const FakeCall call("slice_backward", {tensor("grad_output", {4, 2})},
                      {{"input_sizes", {4, 6}}, {"dim", {1}}});
  EXPECT_EQ(printed(call),
            "*a.. _ b.. -> a.. _ b..\n"
            "S(0) -> S(0): split a[0]\n"
            "P(sum) -> P(sum): linear\n");
  EXPECT_EQ(changes_of(call), "result_sizes input_sizes");
}

TEST(ViewRules, DiagonalPutsTheDiagonalLast) {
  const FakeCall call("diagonal", {tensor("self", {4, 6, 5})}, {{"dim1", {0}}, {"dim2", {-1}}});
  EXPECT_EQ(rule_of(call), "*_ x1 _ -> x1 _");
}

// ---- joins ----

TEST(JoinRules, CatSplitsTheDimsThatItDoesNotJoin) {
  const FakeCall call("cat", {list("tensors", {{4, 3, 6}, {4, 5, 6}})}, {{"dim", {-2}}});
  EXPECT_EQ(printed(call),
            "+a.. _ b..[] -> a.. _ b..\n"
            "S(0) S(0) -> S(0): split a[0]\n"
            "S(2) S(2) -> S(2): split b[0]\n"
            "P(sum) P(sum) -> P(sum): linear\n");
}

TEST(JoinRules, CatWithAnEmptyTensorOfAnyRankIsNotSplit) {
  const FakeCall call("cat", {list("tensors", {{0}, {4, 6}})}, {{"dim", {0}}});
  EXPECT_EQ(rule_of(call), "_..[] -> _..");
}

TEST(JoinRules, StackPutsANewDim) {
  const FakeCall call("stack", {list("tensors", {{4}, {4}})}, {{"dim", {-1}}});
  EXPECT_EQ(printed(call),
            "+a.. b..[] -> a.. _ b..\n"
            "S(0) S(0) -> S(0): split a[0]\n"
            "P(sum) P(sum) -> P(sum): linear\n");
}

// ---- indexing ----

TEST(IndexRules, AnEmbeddingSplitByRowsGivesPendingSums) {
  const FakeCall call("embedding", {tensor("weight", {10, 6}), tensor("indices", {3})}, {});
  EXPECT_EQ(printed(call),
            "*v d, i.. -> i.. d\n"
            "S(0) R -> P(sum): split v (contracted)\n"
            "S(1) R -> S(1): split d\n"
            "R S(0) -> S(0): split i[0]\n"
            "P(sum) R -> P(sum): linear\n");
  EXPECT_EQ(changes_of(call), "mask_indices indices v");
}

TEST(IndexRules, GatherKeepsDimsWholeInWhichTheIndexIsSmaller) {
  const FakeCall call("gather", {tensor("self", {4, 6, 5}), tensor("index", {4, 3, 1})}, {{"dim", {1}}});
  EXPECT_EQ(rule_of(call), "*x0 s x2!, x0 i y2! -> x0 i y2!");
}

TEST(IndexRules, ScatterAddMaySplitWhatIsAdded) {
  const FakeCall call("scatter_add", {tensor("self", {4, 6}), tensor("index", {4, 3}), tensor("src", {4, 3})},
                      {{"dim", {1}}});
  EXPECT_EQ(printed(call),
            "+x0 s, x0 i, *x0 i -> x0 s\n"
            "S(0) S(0) S(0) -> S(0): split x0\n"
            "S(1) R R -> S(1): split s\n"
            "P(sum) S(1) S(1) -> P(sum): split i (contracted)\n"
            "P(sum) R P(sum) -> P(sum): linear\n");
}

// ---- norms ----

TEST(NormRules, SoftmaxNeedsItsDimWhole) {
  const FakeCall call("_softmax", {tensor("self", {4, 6})}, {{"dim", {-1}}});
  EXPECT_EQ(printed(call), "a.. s! b.. -> a.. s! b..\nS(0) -> S(0): split a[0]\n");
}

TEST(NormRules, GradientsOfLayerNormsWeightsArePendingWhereTheBatchIsSplit) {
  const FakeCall call("native_layer_norm_backward",
                      {tensor("grad_out", {4, 6}), tensor("input", {4, 6}), tensor("mean", {4, 1}),
                       tensor("rstd", {4, 1}), tensor("weight", {6}), absent("bias")},
                      {{"normalized_shape", {6}}});
  EXPECT_EQ(printed(call),
            "*a.. n..!, a.. n..!, a.. 1.., a.. 1.., n..!?, n..!? -> a.. n..!, +n..!, +n..!\n"
            "S(0) S(0) S(0) S(0) R -> S(0) P(sum) P(sum): split a[0]\n"
            "P(sum) R R R R -> P(sum) P(sum) P(sum): linear\n");
}

TEST(NormRules, BatchNormSplitsTheBatchOnlyOutsideTraining) {
  const auto batch_norm = [](std::int64_t training) {
    return rule_of(FakeCall("native_batch_norm",
                            {tensor("input", {4, 6, 5}), tensor("weight", {6}), absent("bias"),
                             tensor("running_mean", {6}), tensor("running_var", {6})},
                            {{"training", {training}}}));
  };
  EXPECT_EQ(batch_norm(1), "n! c s..!, c?, c?, c?, c? -> n! c s..!, c, c");
  EXPECT_EQ(batch_norm(0), "n c s.., c?, c?, c?, c? -> n c s.., +_, +_");
}

TEST(NormRules, GroupNormIsToldTheLocalBatch) {
  const FakeCall call("native_group_norm", {tensor("input", {4, 6, 5}), absent("weight"), absent("bias")},
                      {});
  EXPECT_EQ(changes_of(call), "factor_size N n");
}

// ---- losses ----

TEST(LossRules, ALossIsSplitUnlessItIsAMean) {
  const auto mse_loss = [](std::int64_t reduction) {
    return rule_of(FakeCall("mse_loss", {tensor("self", {4, 6}), tensor("target", {4, 6})},
                            {{"reduction", {reduction}}}));
  };
  EXPECT_EQ(mse_loss(0), "..., ... -> ...");
  EXPECT_EQ(mse_loss(1), "_.., _.. -> _..");
  EXPECT_EQ(mse_loss(2), "a.., a.. ->");
}

TEST(LossRules, ASummedLikelihoodSplitByBatchIsPending) {
  const FakeCall call("nll_loss_forward", {tensor("self", {8, 6}), tensor("target", {8}), absent("weight")},
                      {{"reduction", {2}}});
  EXPECT_EQ(printed(call),
            "n c! s.., n s.., c!? ->,\n"
            "S(0) S(0) -> P(sum) P(sum): split n (contracted)\n");
}

// ---- factories ----

TEST(FactoryRules, ANewTensorOfTheSameShapeIsSplitAlike) {
  const FakeCall same("new_zeros", {tensor("self", {4, 6})}, {{"size", {4, 6}}});
  const FakeCall other("new_zeros", {tensor("self", {4, 6})}, {{"size", {6, 4}}});
  EXPECT_EQ(rule_of(same), "... -> ...");
  EXPECT_EQ(changes_of(same), "result_sizes size");
  EXPECT_EQ(rule_of(other), "_.. -> _..");
  EXPECT_EQ(changes_of(other), "");
}

// ---- lists ----

TEST(OptimizerRules, EachElementOfAListIsSplitByItself) {
  const FakeCall call("_foreach_add.Scalar", {list("self", {{4}, {6, 5}})}, {});
  EXPECT_EQ(printed(call),
            "...[] -> ...[]\n"
            "S(0) -> S(0): split ...[-1]\n"
            "S(0) -> S(0): split ...[-2]\n"
            "S(1) -> S(1): split ...[-1]\n");
}

// ---- attention ----

FakeCall attention(std::int64_t query_heads, std::int64_t key_heads, bool is_causal, FakeCall::Tensors mask) {
  return {"_scaled_dot_product_flash_attention_for_cpu",
          {tensor("query", {2, query_heads, 7, 16}), tensor("key", {2, key_heads, 7, 16}),
           tensor("value", {2, key_heads, 7, 16}), std::move(mask)},
          {{"is_causal", {is_causal ? 1 : 0}}}};
}

TEST(AttentionRules, BatchAndHeadsMayBeSplitAndQueriesUnlessCausal) {
  EXPECT_EQ(printed(attention(4, 4, true, absent("attn_mask"))),
            "b h l! e!, b h s! e!, b h s! v!, _..? -> b h l! v!, b h l!\n"
            "S(0) S(0) S(0) -> S(0) S(0): split b\n"
            "S(1) S(1) S(1) -> S(1) S(1): split h\n");
  EXPECT_EQ(rule_of(attention(4, 4, false, absent("attn_mask"))),
            "b h l e!, b h s! e!, b h s! v!, _..? -> b h l v!, b h l");
}

TEST(AttentionRules, GroupedHeadsAreSplitWithTheirKeys) {
  EXPECT_EQ(printed(attention(8, 2, true, tensor("attn_mask", {1, 8, 7, 7}))),
            "b (h r) l! e!, b h s! e!, b h s! v!, b (h r) l! s!? -> b (h r) l! v!, b (h r) l!\n"
            "S(0) S(0) S(0) R -> S(0) S(0): split b\n"
            "S(1) S(1) S(1) S(1) -> S(1) S(1): split h\n");
}

// ---- convolution ----

FakeCall convolution(const Shape& weight, std::int64_t groups, bool transposed) {
  return {"convolution",
          {tensor("input", {8, 4, 9}), tensor("weight", weight), absent("bias")},
          {{"groups", {groups}}, {"transposed", {transposed ? 1 : 0}}}};
}

TEST(ConvolutionRules, ChannelsMayBeSplitOrContracted) {
  EXPECT_EQ(printed(convolution({6, 4, 3}, 1, false)),
            "*n c s..!, *o c k..!, +o? -> n o _..\n"
            "S(0) R -> S(0): split n\n"
            "S(1) S(1) -> P(sum): split c (contracted)\n"
            "R S(0) -> S(1): split o\n"
            "P(sum) R -> P(sum): linear\n"
            "R P(sum) -> P(sum): linear\n");
  EXPECT_EQ(rule_of(convolution({4, 6, 3}, 1, true)), "*n c s..!, *c o k..!, +o? -> n o _..");
}

TEST(ConvolutionRules, WholeGroupsMayBeSplit) {
  EXPECT_EQ(printed(convolution({6, 2, 3}, 2, false)),
            "*n (g c) s..!, *(g o) c k..!, +(g o)? -> n (g o) _..\n"
            "S(0) R -> S(0): split n\n"
            "S(1) S(0) -> S(1): split g\n"
            "P(sum) R -> P(sum): linear\n"
            "R P(sum) -> P(sum): linear\n");
  EXPECT_EQ(changes_of(convolution({6, 2, 3}, 2, false)), "factor_size groups g");
}

TEST(ConvolutionRules, TheGradientOfTheBiasKeepsInputChannelsWhole) {
  const auto backward = [](bool has_bias) {
    std::map<std::string, Numbers> numbers{{"groups", {1}}, {"transposed", {0}}};
    if (has_bias) numbers["bias_sizes"] = {6};
    return rule_of(
        FakeCall("convolution_backward",
                 {tensor("grad_output", {8, 6, 9}), tensor("input", {8, 4, 9}), tensor("weight", {6, 4, 3})},
                 numbers));
  };
  EXPECT_EQ(backward(true), "*n o p..!, n c! s..!, o c! k..! -> +n c! s..!, +o c! k..!, +o");
  EXPECT_EQ(backward(false), "*n o p..!, n c s..!, o c k..! -> +n c s..!, +o c k..!, +o");
}

TEST(PaddingRules, OnlyPaddedDimsAreWhole) {
  const FakeCall call("constant_pad_nd", {tensor("self", {4, 6, 5})}, {{"pad", {0, 0, 1, 2}}});
  EXPECT_EQ(rule_of(call), "*x0 _ x2 -> x0 _ x2");
}

}  // namespace
}  // namespace meshtorch
