// Wrong rules planted on purpose: the prover finds each of them, and says what is wrong.
#include "../dist/sample_inputs.h"
#include "calls.h"
#include "prove/prove.h"

namespace meshtorch::testing {
namespace {

using namespace inputs;
using Others = std::map<std::string, c10::IValue>;

// What the prover says of a rule for the operator, in a table of its own; empty if it finds nothing.
std::string mistake(const RuleEntry& rule, const std::string& op, const std::vector<c10::IValue>& tensors,
                    const Others& others = {}) {
  const Proof proof = prove(operator_named(op), rule, arguments_of({op, tensors, others}));
  EXPECT_TRUE(proof.is_bound);
  return proof.mistakes.empty() ? "" : proof.mistakes.front();
}

// The option that the message names.
std::string option_of(const std::string& message) {
  const std::size_t begin = message.find("option ") + 7;
  return message.substr(begin, message.find('\n', begin) - begin);
}

TEST(RuleProof, FindsNothingWrongWithARightRule) {
  EXPECT_EQ(mistake(RuleEntry("*m k, *k n -> m n"), "mm", {x({5, 4}), x({4, 6}, 2)}), "");
}

TEST(RuleProof, FindsASplitOfADimThatMustBeWhole) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. b -> a.. b"), "cumsum", {x({5, 4})}, {{"dim", 1}})),
            "S(1) -> S(1): split b");
}

TEST(RuleProof, FindsASplitSoftmaxDim) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. s b.. -> a.. s b..").at("s", "dim"), "_softmax", {x({3, 5, 4})},
                              {{"dim", 1}})),
            "S(1) -> S(1): split s");
}

TEST(RuleProof, FindsAPendingSumOfWhatIsNotLinear) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*... -> ..."), "relu", {x({5, 4})})), "P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsANumberThatIsAddedOnEveryRank) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*... -> ..."), "add.Scalar", {x({5, 4})}, {{"other", 3}})),
            "P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsTwoTermsThatAreTwoFactors) {
  EXPECT_EQ(option_of(mistake(RuleEntry("+..., +... -> ..."), "mul.Tensor", {x({5, 4}), x({5, 4}, 2)})),
            "P(sum) P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsALinearFactorThatIsADivisor) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*..., *... -> ..."), "div.Tensor", {x({5, 4}), positive({5, 4})})),
            "R P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsABiasThatIsNoTerm) {
  EXPECT_EQ(option_of(mistake(RuleEntry("n, *m k, *k n -> m n"), "addmm", {x({6}), x({5, 4}), x({4, 6}, 2)})),
            "R S(1) S(0) -> P(sum): split k (contracted)");
}

TEST(RuleProof, FindsNamesThatAreSwapped) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*m k, *k n -> n m"), "mm", {x({5, 4}), x({4, 5}, 2)})),
            "S(0) R -> S(1): split m");
}

TEST(RuleProof, FindsALookUpWithoutAMask) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*v d, i.. -> i.. d"), "embedding", {x({7, 4}), index({2, 5}, 7)})),
            "S(0) R -> P(sum): split v (contracted)");
}

TEST(RuleProof, FindsAViewThatIsSplitAtAnInnerDim) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a b c -> a b c"), "transpose.int", {x({4, 4, 4})},
                              {{"dim0", 0}, {"dim1", 1}})),
            "S(0) -> S(0): split a");
  RuleEntry merge([](const OpCall&) -> RuleUse {
    return {"a b -> (b a)", {}, ReduceOp::sum, {{LocalChange::Kind::result_sizes, "size"}}};
  });
  EXPECT_EQ(option_of(mistake(merge, "view", {x({4, 6})}, {{"size", std::vector<int64_t>{24}}})),
            "S(1) -> S(0): split b");
}

TEST(RuleProof, FindsTheWrongReduction) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->"), "amax", {distinct({5, 4})},
                              {{"dim", std::vector<int64_t>{0, 1}}})),
            "S(0) -> P(sum): split a[0] (contracted)");
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->").reduce(ReduceOp::avg), "sum", {x({4, 4})})),
            "S(0) -> P(avg): split a[0] (contracted)");
}

TEST(RuleProof, FindsAMeanOfUnequalParts) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->"), "mean", {x({5, 4})})),
            "S(0) -> P(sum): split a[0] (contracted)");
}

TEST(RuleProof, FindsAnArgumentThatShouldHaveBeenMadeLocal) {
  EXPECT_NE(
      mistake(RuleEntry("a b -> a b"), "new_zeros", {x({5, 4})}, {{"size", std::vector<int64_t>{5, 4}}}), "");
}

TEST(RuleProof, FindsAResultThatIsNoSum) {
  // The second result of the maximum, the places, is no pending maximum of the parts.
  EXPECT_EQ(option_of(mistake(RuleEntry("a b -> b, b").reduce(ReduceOp::max), "max.dim", {distinct({5, 4})},
                              {{"dim", 0}})),
            "S(0) -> P(max) P(max): split a (contracted)");
}

TEST(RuleProof, FindsAShapeThatIsNotTheOperators) {
  const std::string message = mistake(RuleEntry("a b -> a"), "sum.dim_IntList", {x({5, 4})},
                                      {{"dim", std::vector<int64_t>{1}}, {"keepdim", true}});
  EXPECT_NE(message.find("has rank 2, not 1"), std::string::npos) << message;
}

TEST(RuleProof, FindsValuesThatWereSaidNotToMatter) {
  EXPECT_EQ(option_of(mistake(RuleEntry("... -> ...").shape_only("self"), "neg", {x({5, 4})})),
            "R -> R: replicate");
}

TEST(RuleProof, SaysWhatIsWrongOnOneScreen) {
  EXPECT_EQ(
      mistake(RuleEntry("a.. b -> a.. b"), "cumsum", {torch::ones({4, 4}, torch::kDouble)}, {{"dim", 1}}),
      "meshtorch: the rule of `cumsum` is wrong: result 0 differs by 2\n"
      "  rule   a.. b -> a.. b\n"
      "  option S(1) -> S(1): split b\n"
      "  mesh   (2)\n"
      "  call   self (4, 4) Double, dim 1\n"
      "  seed   1\n"
      "  do: write a rule that does not give this option: `s!` for a dim that must be whole, no `+` or "
      "`*` before what is not linear");
}

}  // namespace
}  // namespace meshtorch::testing
