// The rule engine: notation, binding to shapes, options for one axis, and the truth of each option.
#include <gtest/gtest.h>

#include <cmath>
#include <functional>
#include <limits>
#include <optional>
#include <random>
#include <stdexcept>
#include <string>
#include <vector>

#include "meshtorch/rule_notation.h"
#include "rules/bind.h"
#include "rules/options.h"

namespace meshtorch {
using namespace internal;
namespace {

using Shapes = std::vector<std::vector<Shape>>;

std::string error_of(const std::function<void()>& act) {
  try {
    act();
  } catch (const std::invalid_argument& e) {
    return e.what();
  }
  return "no error";
}

std::string mistake_in(const std::string& rule) {
  return error_of([&] { Rule::parse(rule); });
}

std::string binding_error(const Rule& rule, const Shapes& shapes, const Hints& hints = {}) {
  return error_of([&] { bind(rule, shapes, hints); });
}

std::string listed(const BoundRule& bound, ReduceOp contracted = ReduceOp::sum) {
  std::string text;
  for (const Option& option : options(bound, contracted)) text += option.to_string() + "\n";
  return text;
}

std::int64_t size_of(const BoundRule& bound, const std::string& name) {
  for (const Factor& f : bound.factors) {
    if (f.name == name) return f.size;
  }
  return -1;
}

// ---- Notation ----

TEST(Notation, IsAccessibleAsData) {
  const RulePatterns rule = Rule("+..., *m (g k), *k n! -> m 1 _, m 1.., m _..").patterns();
  ASSERT_EQ(rule.operand_count, 3);
  ASSERT_EQ(rule.tensor_count, 6);
  EXPECT_TRUE(rule.tensors[0].is_ellipsis());
  EXPECT_EQ(rule.tensors[0].mark, '+');
  EXPECT_EQ(rule.tensors[1].mark, '*');
  EXPECT_EQ(rule.tensors[1].dims[1].name_count, 2);
  EXPECT_EQ(rule.tensors[1].dims[1].names[0], "g");
  EXPECT_TRUE(rule.is_whole("n"));
  EXPECT_FALSE(rule.is_whole("k"));
  EXPECT_EQ(rule.tensors[3].dims[1].kind, DimKind::one);
  EXPECT_EQ(rule.tensors[3].dims[2].kind, DimKind::unmatched);
  EXPECT_TRUE(rule.tensors[4].is_open());
  EXPECT_TRUE(rule.tensors[5].is_open());
}

TEST(Notation, PrintsTheCanonicalText) {
  EXPECT_EQ(Rule("  *m k ,*k   n->m n ").to_string(), "*m k, *k n -> m n");
  EXPECT_EQ(Rule("a.. s! b.. -> a.. s b..").to_string(), "a.. s! b.. -> a.. s! b..");
  EXPECT_EQ(Rule("b..  n..!,n..!? ,t[]-> b.. n..!").to_string(), "b.. n..!, n..!?, t[] -> b.. n..!");
  EXPECT_EQ(Rule("*(b  s!) d -> b s d").to_string(), "*(b s!) d -> b s! d");
  EXPECT_EQ(Rule("*k, *k -> ").to_string(), "*k, *k ->");
  EXPECT_EQ(Rule("+...[], * -> ...[]").to_string(), "+...[], * -> ...[]");
  EXPECT_EQ(Rule("b n! -> b n!, +n!").to_string(), "b n! -> b n!, +n!");
  EXPECT_EQ(Rule("_.. , 1 1.. -> _..").to_string(), "_.., 1 1.. -> _..");
}

TEST(Notation, CanonicalTextReadsAsTheSameRule) {
  for (const char* text : {"*m k, *k n -> m n", "a.. s! b.. -> a.. s! b..", "*k, *k ->"}) {
    EXPECT_EQ(Rule::parse(text).to_string(), text);
  }
}

TEST(Notation, KeepsTheTextOfARuleMadeAtRunTime) {
  std::string text = "*first second -> first second";
  const Rule rule = Rule::parse(text);
  text.assign(text.size(), 'x');
  EXPECT_EQ(rule.text(), "*first second -> first second");
  EXPECT_EQ(Rule::parse("*first second -> first second").text().data(), rule.text().data());
}

TEST(Notation, AMistakeIsShownWithACaretAndAdvice) {
  EXPECT_EQ(mistake_in("*m k, *k n -> m q"),
            "meshtorch: malformed rule: a result name comes from no operand\n"
            "  *m k, *k n -> m q\n"
            "                  ^\n"
            "  do: name it in an operand, or write `_` or `1`");
}

struct MistakeCase {
  const char* rule;
  const char* message;
};

class NotationMistake : public testing::TestWithParam<MistakeCase> {};

TEST_P(NotationMistake, HasAMessageOfItsOwn) {
  EXPECT_NE(mistake_in(GetParam().rule).find(GetParam().message), std::string::npos)
      << mistake_in(GetParam().rule);
}

INSTANTIATE_TEST_SUITE_P(
    Each, NotationMistake,
    testing::Values(
        MistakeCase{"m k", "a rule needs '->'"}, MistakeCase{"", "a rule needs '->'"},
        MistakeCase{"m -> m -> m", "a rule has only one '->'"}, MistakeCase{"M -> m", "unexpected character"},
        MistakeCase{"m. -> m", "unexpected character"}, MistakeCase{"a... -> a", "unexpected character"},
        MistakeCase{"m *k -> m", "stands once, before its tensor"},
        MistakeCase{"+*m -> m", "stands once, before its tensor"},
        MistakeCase{"m -> *m", "a result is no linear factor"},
        MistakeCase{"m? k -> m", "'?' or '[]' ends a tensor"},
        MistakeCase{"m?? -> m", "'?' or '[]' ends a tensor"},
        MistakeCase{"m[]? -> m", "'?' and '[]' on one tensor"},
        MistakeCase{"m?[] -> m", "'?' and '[]' on one tensor"}, MistakeCase{"(b s -> b s", "'(' without ')'"},
        MistakeCase{"b s -> (b s", "'(' without ')'"},
        MistakeCase{"(b 1) -> b", "only names may stand inside ( )"},
        MistakeCase{"(b s..) -> b", "only names may stand inside ( )"},
        MistakeCase{"(b) -> b", "( ) holds two or more names"},
        MistakeCase{"() -> ", "( ) holds two or more names"},
        MistakeCase{"(a b c d e) -> a", "( ) holds at most four names"},
        MistakeCase{"_! -> ", "'!' does not follow a name"},
        MistakeCase{"a,a,a,a,a,a,a,a,a,a,a,a,a,a,a,a -> a", "a rule has at most sixteen tensors"},
        MistakeCase{"a b c d e f g h i j k -> a", "a tensor has at most ten dim patterns"},
        MistakeCase{"m m -> m", "a name is twice in one tensor"},
        MistakeCase{"(m k) m -> m k", "a name is twice in one tensor"},
        MistakeCase{"a.., a -> a", "a name is a run in one place and one dim in another"},
        MistakeCase{"m -> n", "a result name comes from no operand"},
        MistakeCase{"a b -> a b, a", "a name is in some results only"},
        MistakeCase{"..., a -> ..., a", "a name is in some results only"},
        MistakeCase{"+m k -> m", "a '+' term uses a name that is in no result"},
        MistakeCase{"a ... -> ...", "'...' stands alone in its tensor"},
        MistakeCase{"..., a -> a", "'...' in an operand needs '...' in the result, or a '+'"},
        MistakeCase{"a -> ...", "'...' in a result needs '...' in an operand"},
        MistakeCase{"+..., a -> a _..", "'...' in an operand needs a result of known rank"},
        MistakeCase{"_.. a 1.. -> a", "a tensor has at most one of `_..` and `1..`"},
        MistakeCase{"a -> _.. a", "`_..` or `1..` comes last in a result"},
        MistakeCase{"a[] -> a[], a", "results are all lists or all plain"}));

// ---- Binding ----

TEST(Bind, NamesCarrySizes) {
  const BoundRule b = bind("*m k, *k n -> m n", {{{4, 8}}, {{8, 6}}});
  EXPECT_EQ(size_of(b, "m"), 4);
  EXPECT_EQ(size_of(b, "k"), 8);
  EXPECT_EQ(b.operand_count, 2);
  EXPECT_EQ(result_shape(b, 0, {2, 6}), (Shape{4, 6}));
}

TEST(Bind, BroadcastDimsDoNotHoldTheFactor) {
  const BoundRule b = bind("+..., +... -> ...", {{{4, 8}}, {{4, 1}}});
  EXPECT_EQ(result_shape(b, 0, {4, 8}), (Shape{4, 8}));
  for (const Factor& f : b.factors) EXPECT_EQ(f.sites.size(), f.size == 4 ? 3U : 2U) << f.name;
}

TEST(Bind, BroadcastGivesTheLargerRankAndSizes) {
  EXPECT_EQ(result_shape(bind("*..., *... -> ...", {{{5, 1, 3}}, {{2, 1}}}), 0, {5, 2, 3}), (Shape{5, 2, 3}));
  EXPECT_EQ(result_shape(bind("*..., *... -> ...", {{{1, 3}}, {{0, 1}}}), 0, {0, 3}), (Shape{0, 3}));
  EXPECT_EQ(result_shape(bind("*..., *... -> ...", {{{}}, {{}}}), 0, {}), Shape{});
}

TEST(Bind, AnEllipsisTermIsReadAgainstANamedResult) {
  const BoundRule b = bind("+..., *a.. k, *k n -> a.. n", {{{3, 6}}, {{2, 3, 8}}, {{8, 6}}});
  EXPECT_EQ(listed(b),
            "R R R -> R: replicate\n"
            "S(0) S(1) R -> S(1): split a[1]\n"
            "S(1) R S(1) -> S(2): split n\n"
            "R S(0) R -> S(0): split a[0]\n"
            "P(sum) S(2) S(0) -> P(sum): split k (contracted)\n"
            "P(sum) P(sum) R -> P(sum): linear\n"
            "P(sum) R P(sum) -> P(sum): linear\n"
            "P(avg) P(avg) R -> P(avg): linear\n"
            "P(avg) R P(avg) -> P(avg): linear\n");
}

TEST(Bind, AnEllipsisTermIsSplitWithACompoundResultDim) {
  const BoundRule b = bind("+..., *g k -> (g k)", {{{6}}, {{2, 3}}});
  EXPECT_NE(listed(b).find("S(0) S(0) -> S(0): split g\n"), std::string::npos) << listed(b);
}

TEST(Bind, ARunLengthComesFromAnotherOperandOrAHint) {
  const Rule norm = "b.. n..!, n..!? -> b.. n..!, b.. 1..";
  EXPECT_EQ(
      listed(bind(norm, {{{2, 5, 16}}, {{16}}})),
      listed(bind(norm, {{{2, 5, 16}}, {{16}}}, {.lengths = {{"n", 1}}, .positions = {}, .sizes = {}})));
  const BoundRule without =
      bind(norm, {{{2, 5, 16}}, {}}, {.lengths = {{"n", 1}}, .positions = {}, .sizes = {}});
  EXPECT_EQ(listed(without),
            "R -> R R: replicate\n"
            "S(0) -> S(0) S(0): split b[0]\n"
            "S(1) -> S(1) S(1): split b[1]\n");
  EXPECT_EQ(result_shape(without, 1, {1, 5, 1}), (Shape{2, 5, 1}));
}

TEST(Bind, APositionFixesTheRunBeforeIt) {
  const Rule softmax = "a.. s! b.. -> a.. s! b..";
  const auto at = [](std::int64_t dim) {
    return Hints{.lengths = {}, .positions = {{"s", dim}}, .sizes = {}};
  };
  EXPECT_EQ(size_of(bind(softmax, {{{2, 3, 8}}}, at(1)), "s"), 3);
  EXPECT_EQ(size_of(bind(softmax, {{{2, 3, 8}}}, at(-1)), "s"), 8);
  EXPECT_EQ(size_of(bind(softmax, {{{2, 3, 8}}}, at(-3)), "s"), 2);
}

TEST(Bind, PartsOfACompoundComeFromOtherDimsOrHints) {
  const BoundRule grouped = bind("b (g r) _, b g _ -> b (g r) _", {{{2, 8, 16}}, {{2, 4, 16}}});
  EXPECT_EQ(size_of(grouped, "r"), 2);
  const Hints inner{.lengths = {}, .positions = {}, .sizes = {{"s", 5}}};
  const BoundRule view = bind("*(b s) d -> b s d", {{{20, 16}}}, inner);
  EXPECT_EQ(result_shape(view, 0, {2, 5, 16}), (Shape{4, 5, 16}));
  EXPECT_EQ(result_shape(bind("*b s d -> (b s) d", {{{4, 5, 16}}}), 0, {10, 16}), (Shape{20, 16}));
}

TEST(Bind, ASizeOneDimAgainstACompoundIsBroadcast) {
  const BoundRule b = bind("(g r), g, (g r)? -> (g r)", {{{8}}, {{4}}, {{1}}});
  EXPECT_EQ(options(b)[1].to_string(), "S(0) S(0) R -> S(0): split g");
}

TEST(Bind, UnmatchedSizesComeFromTheLocalResult) {
  const BoundRule b = bind("*n c _.., *o c _.., +o? -> n o _..", {{{8, 3, 32, 32}}, {{16, 3, 3, 3}}, {}});
  EXPECT_EQ(result_shape(b, 0, {4, 16, 30, 30}), (Shape{8, 16, 30, 30}));
  EXPECT_EQ(result_shape(bind("*a s -> a 1 _", {{{4, 8}}}), 0, {2, 1, 7}), (Shape{4, 1, 7}));
}

TEST(Bind, AZeroDimTensorIsAnEmptyPattern) {
  const BoundRule b = bind("*k, *k -> ", {{{8}}, {{8}}});
  EXPECT_EQ(result_shape(b, 0, {}), Shape{});
  EXPECT_EQ(options(b)[1].to_string(), "S(0) S(0) -> P(sum): split k (contracted)");
}

TEST(Bind, AListAppliesItsPatternToEachElement) {
  const Hints dim{.lengths = {{"a", 1}}, .positions = {}, .sizes = {}};
  const BoundRule cat = bind("+a.. _ b..[] -> a.. _ b..", {{{4, 3, 6}, {4, 5, 6}, {4, 0, 6}}}, dim);
  EXPECT_EQ(cat.operand_count, 3);
  EXPECT_EQ(cat.tensors[1].element, 1);
  EXPECT_EQ(listed(cat),
            "R R R -> R: replicate\n"
            "S(0) S(0) S(0) -> S(0): split a[0]\n"
            "S(2) S(2) S(2) -> S(2): split b[0]\n"
            "P(sum) P(sum) P(sum) -> P(sum): linear\n"
            "P(avg) P(avg) P(avg) -> P(avg): linear\n");
  EXPECT_EQ(result_shape(cat, 0, {2, 8, 6}), (Shape{4, 8, 6}));
}

TEST(Bind, AListResultOfAPlainOperandIsOneTensorForAllElements) {
  const Hints dim{.lengths = {}, .positions = {{"s", 0}}, .sizes = {}};
  const BoundRule split = bind("*a.. s! b.. -> a.. _ b..[]", {{{6, 4}}}, dim);
  EXPECT_EQ(split.result_count(), 1);
  EXPECT_EQ(options(split)[1].to_string(), "S(1) -> S(1): split b[0]");
  EXPECT_EQ(result_shape(split, 0, {5, 2}), (Shape{5, 4}));
}

TEST(Bind, PairedListsAreIndependentProblems) {
  const BoundRule b = bind("+...[], +...[], * -> ...[]", {{{4}, {2, 3}}, {{4}, {3}}, {{}}});
  ASSERT_EQ(b.result_count(), 2);
  EXPECT_EQ(result_shape(b, 1, {1, 3}), (Shape{2, 3}));
  const std::vector<BoundElement> parts = elements(b);
  ASSERT_EQ(parts.size(), 2U);
  EXPECT_EQ(parts[1].tensors, (std::vector<int>{1, 3, 4, 6}));
  EXPECT_EQ(listed(parts[1].rule),
            "R R R -> R: replicate\n"
            "S(0) R R -> S(0): split ...[-2]\n"
            "S(1) S(0) R -> S(1): split ...[-1]\n");
}

TEST(Bind, AnEmptyListGoesWithAnyPairedList) {
  const BoundRule b = bind("...[], ...[] -> ...[]", {{{4}, {2}}, {}});
  EXPECT_EQ(elements(b).size(), 2U);
  EXPECT_TRUE(elements(bind("...[] -> ...[]", {{}})).empty());
  EXPECT_EQ(elements(bind("... -> ...", {{{4}}})).size(), 1U);
}

TEST(Bind, SizesZeroAndOneAreOffered) {
  EXPECT_EQ(options(bind("+..., +... -> ...", {{{1, 8}}, {{1, 8}}}))[1].to_string(),
            "S(0) S(0) -> S(0): split ...[-2]");
  EXPECT_EQ(options(bind("+..., +... -> ...", {{{0, 8}}, {{1, 8}}}))[1].to_string(),
            "S(0) R -> S(0): split ...[-2]");
}

TEST(Bind, SaysWhichRankDoesNotFit) {
  EXPECT_EQ(binding_error("*m k, *k n -> m n", {{{4, 8}}, {{8, 6, 2}}}),
            "meshtorch: rank 3 does not fit the pattern: operand 1, `*k n`, of shape (8, 6, 2)\n"
            "  in the rule `*m k, *k n -> m n`\n"
            "  do: give a tensor of the rank that the operator takes");
}

TEST(Bind, SaysWhichSizesDisagree) {
  EXPECT_EQ(binding_error("*m k, *k n -> m n", {{{4, 8}}, {{7, 6}}}),
            "meshtorch: size 7 of dim 0 does not fit `k`, which is 8 elsewhere: operand 1, `*k n`, of "
            "shape (7, 6)\n"
            "  in the rule `*m k, *k n -> m n`\n"
            "  do: give tensors whose shapes agree");
}

TEST(Bind, EveryOtherErrorSaysWhatToDo) {
  const auto expect = [](const std::string& error, const std::string& wrong) {
    EXPECT_NE(error.find(wrong), std::string::npos) << error;
    EXPECT_NE(error.find("\n  in the rule `"), std::string::npos) << error;
    EXPECT_NE(error.find("\n  do: "), std::string::npos) << error;
  };
  const auto sizes = [](const std::string& name, std::int64_t size) {
    return Hints{.lengths = {}, .positions = {}, .sizes = {{name, size}}};
  };
  expect(binding_error("a.. s b.. -> a.. b..", {{{2, 3}}}), "the length of `a..` is not known");
  expect(binding_error("_.. a.. -> a..", {{{2, 3}}}), "the length of `a..` is not known");
  expect(binding_error("m, n..? -> m n..", {{{2}}, {}}), "the length of `n..` is not known");
  expect(binding_error("m, n? -> m n", {{{2}}, {}}), "the size of `n` is not known");
  expect(binding_error("(b s) -> b s", {{{6}}}), "the size of `b` is not known");
  expect(binding_error("(b s) -> b s", {{{6}}}, sizes("b", 4)), "size 6 of dim 0 does not fit `b s`");
  expect(binding_error("b s, (b s) -> b s", {{{2, 3}}, {{7}}}), "does not fit `b s`, which is 6");
  expect(binding_error("m 1 -> m", {{{2, 3}}}), "dim 1 must have size 1, not 3");
  expect(binding_error("a.. s b.. -> a.. s b..", {{{2, 3}}},
                       {.lengths = {}, .positions = {{"s", 4}}, .sizes = {}}),
         "`s` cannot begin at dim 4");
  expect(binding_error("+..., m -> m", {{{2, 3}}, {{3}}}), "rank 2 is more than the result's, 1");
  expect(binding_error("m -> m", {{{2}}, {{2}}}), "2 operands for a rule of 1");
  expect(binding_error("m, n -> m", {{{2}}, {}}), "0 tensors for operand 1, `n`");
  expect(binding_error("...[], ...[] -> ...[]", {{{2}, {2}}, {{2}}}), "lists of 2 and 1 tensors");
  expect(error_of([] { result_shape(bind("m n -> m", {{{2, 3}}}), 0, {2, 3}); }), "has rank 2, not 1");
}

// ---- Options ----

TEST(Rules, SplittingTheContractedDimGivesAPendingSum) {
  EXPECT_EQ(listed(bind("*m k, *k n -> m n", {{{4, 8}}, {{8, 6}}})),
            "R R -> R: replicate\n"
            "S(0) R -> S(0): split m\n"
            "S(1) S(0) -> P(sum): split k (contracted)\n"
            "R S(1) -> S(1): split n\n"
            "P(sum) R -> P(sum): linear\n"
            "R P(sum) -> P(sum): linear\n"
            "P(avg) R -> P(avg): linear\n"
            "R P(avg) -> P(avg): linear\n");
}

TEST(Rules, AnAdditiveTermIsPendingWithTheContraction) {
  EXPECT_EQ(options(bind("+o?, *n c, *o c -> n o", {{{3}}, {{4, 8}}, {{3, 8}}}))[3].to_string(),
            "P(sum) S(1) S(1) -> P(sum): split c (contracted)");
}

TEST(Rules, AWholeDimIsNeverSplit) {
  const Hints dim{.lengths = {}, .positions = {{"s", 2}}, .sizes = {}};
  EXPECT_EQ(listed(bind("a.. s! b.. -> a.. s! b..", {{{2, 3, 8}}}, dim)),
            "R -> R: replicate\nS(0) -> S(0): split a[0]\nS(1) -> S(1): split a[1]\n");
}

TEST(Rules, AnotherReductionIsPendingAsItself) {
  const BoundRule b = bind("a s -> a", {{{2, 6}}});
  EXPECT_EQ(options(b, ReduceOp::max)[2].to_string(), "S(1) -> P(max): split s (contracted)");
  EXPECT_EQ(options(bind("+a, a s -> a", {{{2}}, {{2, 6}}}), ReduceOp::max).size(), 4U)
      << "a term cannot be shared among the parts of a maximum";
}

TEST(Rules, AResultMarkedAsASumIsPendingOverTheNamesItLacks) {
  EXPECT_EQ(listed(bind("b n!, b n! -> b n!, +n!", {{{4, 8}}, {{4, 8}}})),
            "R R -> R R: replicate\nS(0) S(0) -> S(0) P(sum): split b\n");
}

TEST(Rules, OnlyTheOuterPartOfACompoundIsSplit) {
  const BoundRule b = bind("*b s d -> (b s) d", {{{4, 5, 16}}});
  EXPECT_EQ(listed(b),
            "R -> R: replicate\n"
            "S(0) -> S(0): split b\n"
            "S(2) -> S(1): split d\n"
            "P(sum) -> P(sum): linear\n"
            "P(avg) -> P(avg): linear\n");
}

TEST(Rules, ACompoundIsSplitOnlyWhereChunksAgree) {
  const Option outer = options(bind("*b s -> (b s)", {{{4, 5}}}))[1];
  const BoundRule b = bind("*b s -> (b s)", {{{4, 5}}});
  EXPECT_TRUE(feasible(outer, b, 1));
  EXPECT_TRUE(feasible(outer, b, 2));
  EXPECT_TRUE(feasible(outer, b, 4));
  EXPECT_FALSE(feasible(outer, b, 3));
  EXPECT_FALSE(feasible(outer, b, 8));
  EXPECT_TRUE(feasible(outer, bind("*b s -> (b s)", {{{4, 1}}}), 3));
  EXPECT_TRUE(feasible(outer, bind("*b s -> (b s)", {{{0, 5}}}), 3));
}

TEST(Rules, AMeanIsSplitOnlyIntoEqualParts) {
  const BoundRule b = bind("a s -> a", {{{2, 6}}});
  const Option mean = options(b, ReduceOp::avg)[2];
  EXPECT_TRUE(feasible(mean, b, 3));
  EXPECT_FALSE(feasible(mean, b, 4));
}

TEST(Rules, AMaximumIsSplitOnlyIntoPartsThatHoldSomething) {
  const BoundRule b = bind("a s -> a", {{{2, 5}}});
  const Option maximum = options(b, ReduceOp::max)[2];
  EXPECT_TRUE(feasible(maximum, b, 3));
  EXPECT_FALSE(feasible(maximum, b, 4));
}

TEST(Rules, NarrowingLeavesTheSameRuleOnSmallerTensors) {
  const BoundRule b = bind("*b s d -> (b s) d", {{{4, 5, 16}}});
  const BoundRule rest = narrowed(b, options(b)[1], 2, 1);
  EXPECT_EQ(rest.tensors[0].shape, (Shape{2, 5, 16}));
  EXPECT_EQ(rest.tensors[1].shape, (Shape{10, 16}));
  EXPECT_EQ(size_of(rest, "b"), 2);
  EXPECT_EQ(listed(rest), listed(b));
  EXPECT_EQ(narrowed(b, options(b)[0], 2, 1).tensors[0].shape, b.tensors[0].shape);
}

// ---- Truth: a plain interpreter of a few operators, and every option on simulated ranks ----

struct Array {
  Shape shape;
  std::vector<double> data;
};

std::int64_t count(const Shape& shape) {
  std::int64_t n = 1;
  for (const std::int64_t s : shape) n *= s;
  return n;
}

// An array whose value at each index is value(index).
Array make(const Shape& shape, const std::function<double(const Shape&)>& value) {
  Array a{shape, {}};
  Shape index(shape.size(), 0);
  for (std::int64_t i = 0; i < count(shape); ++i) {
    std::int64_t rest = i;
    for (std::size_t d = shape.size(); d > 0; --d) {
      index[d - 1] = rest % shape[d - 1];
      rest /= shape[d - 1];
    }
    a.data.push_back(value(index));
  }
  return a;
}

double at(const Array& a, const Shape& index) {
  std::int64_t flat = 0;
  for (std::size_t d = 0; d < a.shape.size(); ++d) flat = flat * a.shape[d] + index.at(d);
  return a.data.at(static_cast<std::size_t>(flat));
}

// The element that broadcasting from the right puts at `index`.
double broadcast_at(const Array& a, Shape index) {
  index.erase(index.begin(), index.end() - static_cast<std::ptrdiff_t>(a.shape.size()));
  for (std::size_t d = 0; d < index.size(); ++d) index[d] = a.shape[d] == 1 ? 0 : index[d];
  return at(a, index);
}

Array add(const Array& a, const Array& b) {
  Shape shape(std::max(a.shape.size(), b.shape.size()), 1);
  for (const Array* x : {&a, &b}) {
    const std::size_t skip = shape.size() - x->shape.size();
    for (std::size_t d = 0; d < x->shape.size(); ++d) {
      if (x->shape[d] != 1) shape[skip + d] = x->shape[d];
    }
  }
  return make(shape, [&](const Shape& i) { return broadcast_at(a, i) + broadcast_at(b, i); });
}

Array matmul(const Array& a, const Array& b) {  // the last two dims; those before are equal
  Shape shape = a.shape;
  shape.back() = b.shape.back();
  return make(shape, [&](const Shape& index) {
    double sum = 0;
    Shape left = index;
    Shape right = index;
    for (std::int64_t k = 0; k < a.shape.back(); ++k) {
      left[left.size() - 1] = k;
      right[right.size() - 2] = k;
      sum += at(a, left) * at(b, right);
    }
    return sum;
  });
}

Array reduce(const Array& a, std::size_t dim, double start,
             const std::function<double(double, double)>& join) {
  Shape shape = a.shape;
  shape[dim] = 1;
  return make(shape, [&](const Shape& index) {
    double value = start;
    Shape from = index;
    for (from[dim] = 0; from[dim] < a.shape[dim]; ++from[dim]) value = join(value, at(a, from));
    return value;
  });
}

Array sum_keepdim(const Array& a) { return reduce(a, 1, 0, std::plus<>()); }

Array mean_keepdim(const Array& a) {
  Array mean = sum_keepdim(a);
  for (double& x : mean.data) x /= static_cast<double>(a.shape[1]);
  return mean;
}

Array max_keepdim(const Array& a) {
  return reduce(a, 1, -std::numeric_limits<double>::infinity(),
                [](double x, double y) { return std::max(x, y); });
}

Array softmax(const Array& a) {
  const Array scale = reduce(a, 1, 0, [](double s, double x) { return s + std::exp(x); });
  return make(a.shape, [&](const Shape& i) { return std::exp(at(a, i)) / broadcast_at(scale, i); });
}

Array slice(const Array& a, std::size_t dim, Range range) {
  Shape shape = a.shape;
  shape[dim] = range.size;
  return make(shape, [&](Shape index) {
    index[dim] += range.begin;
    return at(a, index);
  });
}

Array concat(const std::vector<Array>& parts, std::size_t dim) {
  Shape shape = parts[0].shape;
  shape[dim] = 0;
  for (const Array& p : parts) shape[dim] += p.shape[dim];
  return make(shape, [&](Shape index) {
    std::size_t p = 0;
    while (index[dim] >= parts[p].shape[dim]) index[dim] -= parts[p++].shape[dim];
    return at(parts[p], index);
  });
}

using Arrays = std::vector<Array>;

// What the ranks of an axis hold of an array. A pending array is split into random terms.
Arrays distribute(const Array& a, const Placement& p, std::int64_t extent, std::mt19937& random) {
  Arrays parts;
  for (std::int64_t i = 0; i < extent; ++i) {
    parts.push_back(p.is_shard() ? slice(a, static_cast<std::size_t>(p.dim()),
                                         chunk(a.shape[static_cast<std::size_t>(p.dim())], extent, i))
                                 : a);
  }
  if (!p.is_partial()) return parts;
  const double total = p.is_partial(ReduceOp::avg) ? static_cast<double>(extent) : 1;
  std::uniform_real_distribution<double> term(-1, 1);
  for (std::size_t j = 0; j < a.data.size(); ++j) {
    double rest = a.data[j] * total;
    for (Array& part : parts) rest -= part.data[j] = term(random);
    parts.back().data[j] += rest;
  }
  return parts;
}

bool equal(const Array& a, const Array& b) {
  if (a.shape != b.shape) return false;
  for (std::size_t i = 0; i < a.data.size(); ++i) {
    if (std::abs(a.data[i] - b.data[i]) > 1e-9) return false;
  }
  return true;
}

// The array that the parts make; nothing if replicas differ.
std::optional<Array> assemble(const Arrays& parts, const Placement& p) {
  if (p.is_shard()) return concat(parts, static_cast<std::size_t>(p.dim()));
  Array whole = parts[0];
  for (std::size_t i = 1; i < parts.size(); ++i) {
    if (p.is_replicate() && !equal(parts[i], whole)) return std::nullopt;
    for (std::size_t j = 0; p.is_partial() && j < whole.data.size(); ++j) {
      double& x = whole.data[j];
      x = p.is_partial(ReduceOp::max) ? std::max(x, parts[i].data[j]) : x + parts[i].data[j];
    }
  }
  for (double& x : whole.data) x /= p.is_partial(ReduceOp::avg) ? static_cast<double>(parts.size()) : 1;
  return whole;
}

struct TruthCase {
  std::string name;
  Rule rule;
  Shapes shapes;
  Hints hints;
  ReduceOp contracted = ReduceOp::sum;
  std::function<Array(const Arrays&)> compute;
};

enum class Verdict { right, wrong, infeasible };

// Runs the case with the given option on each axis, every rank one after another, and puts the
// result together again.
class TruthSimulation {
 public:
  explicit TruthSimulation(const TruthCase& test) : test_(test) {}

  Verdict run(const BoundRule& bound, const Arrays& operands, const std::vector<std::int64_t>& mesh,
              const std::vector<std::size_t>& picks) {
    feasible_ = true;
    const std::optional<Array> result = evaluate(bound, operands, mesh, picks, 0);
    if (!feasible_) return Verdict::infeasible;
    return result && equal(*result, test_.compute(operands)) ? Verdict::right : Verdict::wrong;
  }

 private:
  std::optional<Array> evaluate(const BoundRule& bound, const Arrays& operands,
                                const std::vector<std::int64_t>& mesh, const std::vector<std::size_t>& picks,
                                std::size_t axis) {
    if (axis == mesh.size()) return test_.compute(operands);
    const Option option = options(bound, test_.contracted).at(picks[axis]);
    feasible_ = feasible_ && feasible(option, bound, mesh[axis]);
    if (!feasible_) return std::nullopt;
    std::vector<Arrays> held;
    for (std::size_t t = 0; t < operands.size(); ++t) {
      held.push_back(distribute(operands[t], option.operands[t], mesh[axis], random_));
    }
    Arrays results;
    for (std::int64_t i = 0; i < mesh[axis]; ++i) {
      Arrays local;
      for (const Arrays& parts : held) local.push_back(parts[static_cast<std::size_t>(i)]);
      const auto result = evaluate(narrowed(bound, option, mesh[axis], i), local, mesh, picks, axis + 1);
      if (!result) return std::nullopt;
      results.push_back(*result);
    }
    return assemble(results, option.results[0]);
  }

  const TruthCase& test_;
  std::mt19937 random_{7};
  bool feasible_ = true;
};

Array fold_rows(const Array& a, std::int64_t inner) {  // (b s) d -> b s d
  return {{a.shape[0] / inner, inner, a.shape[1]}, a.data};
}

std::vector<TruthCase> truth_cases() {
  const auto at_dim = [](const char* name, std::int64_t dim) {
    return Hints{.lengths = {}, .positions = {{name, dim}}, .sizes = {}};
  };
  const Hints five{.lengths = {}, .positions = {}, .sizes = {{"s", 5}}};
  const auto sum = ReduceOp::sum;
  const auto mm = [](const Arrays& x) { return matmul(x[0], x[1]); };
  const auto plus = [](const Arrays& x) { return add(x[0], x[1]); };
  return {
      {"mm", "*m k, *k n -> m n", {{{4, 5}}, {{5, 3}}}, {}, sum, mm},
      {"mm_tiny", "*m k, *k n -> m n", {{{1, 2}}, {{2, 0}}}, {}, sum, mm},
      {"bmm", "*b m k, *b k n -> b m n", {{{3, 2, 4}}, {{3, 4, 5}}}, {}, sum, mm},
      {"addmm",
       "+..., *m k, *k n -> m n",
       {{{3}}, {{4, 5}}, {{5, 3}}},
       {},
       sum,
       [](const Arrays& x) { return add(x[0], matmul(x[1], x[2])); }},
      {"add", "+..., +... -> ...", {{{4, 6}}, {{4, 6}}}, {}, sum, plus},
      {"add_row", "+..., +... -> ...", {{{4, 6}}, {{6}}}, {}, sum, plus},
      {"add_crossed", "+..., +... -> ...", {{{1, 6}}, {{5, 1}}}, {}, sum, plus},
      {"add_ones", "+..., +... -> ...", {{{1, 3}}, {{1, 3}}}, {}, sum, plus},
      {"add_empty", "+..., +... -> ...", {{{0, 3}}, {{1, 3}}}, {}, sum, plus},
      {"add_scalar", "+..., +... -> ...", {{{3}}, {{}}}, {}, sum, plus},
      {"sum_keepdim",
       "*a.. s b.. -> a.. 1 b..",
       {{{3, 5, 2}}},
       at_dim("s", 1),
       sum,
       [](const Arrays& x) { return sum_keepdim(x[0]); }},
      {"mean_keepdim",
       "*a.. s b.. -> a.. 1 b..",
       {{{3, 12, 2}}},
       at_dim("s", 1),
       ReduceOp::avg,
       [](const Arrays& x) { return mean_keepdim(x[0]); }},
      {"mean_uneven",
       "*a.. s b.. -> a.. 1 b..",
       {{{3, 5, 2}}},
       at_dim("s", 1),
       ReduceOp::avg,
       [](const Arrays& x) { return mean_keepdim(x[0]); }},
      {"max_keepdim",
       "a.. s b.. -> a.. 1 b..",
       {{{3, 5, 2}}},
       at_dim("s", 1),
       ReduceOp::max,
       [](const Arrays& x) { return max_keepdim(x[0]); }},
      {"softmax",
       "a.. s! b.. -> a.. s! b..",
       {{{3, 4, 5}}},
       at_dim("s", 1),
       sum,
       [](const Arrays& x) { return softmax(x[0]); }},
      {"view_split",
       "*(b s) d -> b s d",
       {{{20, 3}}},
       five,
       sum,
       [](const Arrays& x) { return fold_rows(x[0], 5); }},
      {"view_split_uneven",
       "*(b s) d -> b s d",
       {{{15, 3}}},
       five,
       sum,
       [](const Arrays& x) { return fold_rows(x[0], 5); }},
      {"cat",
       "+a.. _ b..[] -> a.. _ b..",
       {{{4, 3, 2}, {4, 1, 2}, {4, 0, 2}}},
       {.lengths = {{"a", 1}}, .positions = {}, .sizes = {}},
       sum,
       [](const Arrays& x) { return concat(x, 1); }},
  };
}

class RulesTruth : public testing::TestWithParam<TruthCase> {
 protected:
  void SetUp() override {
    bound_ = bind(GetParam().rule, GetParam().shapes, GetParam().hints);
    std::mt19937 random{3};
    std::normal_distribution<double> value;
    for (const auto& shapes : GetParam().shapes) {
      for (const Shape& s : shapes) operands_.push_back(make(s, [&](const Shape&) { return value(random); }));
    }
    count_ = options(bound_, GetParam().contracted).size();
  }

  void expect_right(const std::vector<std::int64_t>& mesh, const std::vector<std::size_t>& picks) {
    const Verdict verdict = TruthSimulation(GetParam()).run(bound_, operands_, mesh, picks);
    if (verdict == Verdict::right) ++right_;
    std::string text;
    for (const std::size_t pick : picks) {
      text += "\n  " + options(bound_, GetParam().contracted)[pick].to_string();
    }
    EXPECT_NE(verdict, Verdict::wrong) << "mesh " << testing::PrintToString(mesh) << text;
  }

  BoundRule bound_;
  Arrays operands_;
  std::size_t count_ = 0;
  std::size_t right_ = 0;
};

TEST_P(RulesTruth, EveryOptionIsRightOnOneAxis) {
  for (const std::int64_t extent : {2, 3, 4}) {
    for (std::size_t i = 0; i < count_; ++i) expect_right({extent}, {i});
  }
  EXPECT_GE(right_, 3U);
}

TEST_P(RulesTruth, EveryPairOfOptionsIsRightOnTwoAxes) {
  for (const auto& mesh : {std::vector<std::int64_t>{2, 2}, {2, 3}, {3, 2}}) {
    for (std::size_t i = 0; i < count_; ++i) {
      for (std::size_t j = 0; j < count_; ++j) expect_right(mesh, {i, j});
    }
  }
  EXPECT_GE(right_, 3U);
}

INSTANTIATE_TEST_SUITE_P(Each, RulesTruth, testing::ValuesIn(truth_cases()),
                         [](const auto& test) { return test.param.name; });

TEST(RulesTruthCheck, FindsAWrongRule) {
  const TruthCase wrong{"softmax", "a s -> a s",  {{{3, 4}}},
                        {},        ReduceOp::sum, [](const Arrays& x) { return softmax(x[0]); }};
  const BoundRule bound = bind(wrong.rule, wrong.shapes);
  const Array x = make({3, 4}, [](const Shape& i) { return static_cast<double>(i[0] + i[1]); });
  EXPECT_EQ(TruthSimulation(wrong).run(bound, {x}, {2}, {1}), Verdict::right);
  EXPECT_EQ(TruthSimulation(wrong).run(bound, {x}, {2}, {2}), Verdict::wrong);
}

}  // namespace
}  // namespace meshtorch
