// Wrong rules planted on purpose: the prover finds each of them, and says what is wrong.
#include "../dist/call.h"
#include "prove/prove.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// What the prover says of a rule for the call, in a table of its own; empty if it finds nothing.
std::string mistake(const RuleEntry& rule, const std::string& text) {
  const Call call = Call::parse(text);
  const Proof proof = prove(operator_info(call.op), rule, call.stack(call.tensors()));
  EXPECT_TRUE(proof.is_bound);
  return proof.mistakes.empty() ? "" : proof.mistakes.front();
}

// The option that the message names.
std::string option_of(const std::string& message) {
  const std::size_t begin = message.find("option ") + 7;
  return message.substr(begin, message.find('\n', begin) - begin);
}

TEST(RuleProof, FindsNothingWrongWithARightRule) {
  EXPECT_EQ(mistake(RuleEntry("*m k, *k n -> m n"), "mm: f[5,4], f[4,6]"), "");
}

TEST(RuleProof, FindsASplitOfADimThatMustBeWhole) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. b -> a.. b"), "cumsum: f[5,4], 1")), "S(1) -> S(1): split b");
}

TEST(RuleProof, FindsASplitSoftmaxDim) {
  EXPECT_EQ(
      option_of(mistake(RuleEntry("a.. s b.. -> a.. s b..").at("s", "dim"), "_softmax: f[3,5,4], 1, false")),
      "S(1) -> S(1): split s");
}

TEST(RuleProof, FindsAPendingSumOfWhatIsNotLinear) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*... -> ..."), "relu: f[5,4]")), "P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsANumberThatIsAddedOnEveryRank) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*... -> ..."), "add.Scalar: f[5,4], 3")),
            "P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsTwoTermsThatAreTwoFactors) {
  EXPECT_EQ(option_of(mistake(RuleEntry("+..., +... -> ..."), "mul.Tensor: f[5,4], f[5,4]")),
            "P(sum) P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsALinearFactorThatIsADivisor) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*..., *... -> ..."), "div.Tensor: f[5,4], p[5,4]")),
            "R P(sum) -> P(sum): linear");
}

TEST(RuleProof, FindsABiasThatIsNoTerm) {
  EXPECT_EQ(option_of(mistake(RuleEntry("n, *m k, *k n -> m n"), "addmm: f[6], f[5,4], f[4,6]")),
            "R S(1) S(0) -> P(sum): split k (contracted)");
}

TEST(RuleProof, FindsNamesThatAreSwapped) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*m k, *k n -> n m"), "mm: f[5,4], f[4,5]")),
            "S(0) R -> S(1): split m");
}

TEST(RuleProof, FindsALookUpWithoutAMask) {
  EXPECT_EQ(option_of(mistake(RuleEntry("*v d, i.. -> i.. d"), "embedding: f[7,4], i7[2,5]")),
            "S(0) R -> P(sum): split v (contracted)");
}

TEST(RuleProof, FindsAViewThatIsSplitAtAnInnerDim) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a b c -> a b c"), "transpose.int: f[4,4,4], 0, 1")),
            "S(0) -> S(0): split a");
  const RuleEntry merge([](const OpArguments&) -> RuleUse {
    return {"a b -> (b a)", {}, ReduceOp::sum, {{LocalChange::Kind::result_sizes, "size"}}};
  });
  EXPECT_EQ(option_of(mistake(merge, "view: f[4,6], [24]")), "S(1) -> S(0): split b");
}

TEST(RuleProof, FindsTheWrongReduction) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->"), "amax: d[5,4], [0,1]")),
            "S(0) -> P(sum): split a[0] (contracted)");
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->").reduce(ReduceOp::avg), "sum: f[4,4]")),
            "S(0) -> P(avg): split a[0] (contracted)");
}

TEST(RuleProof, FindsAMeanOfUnequalParts) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a.. ->"), "mean: f[5,4]")),
            "S(0) -> P(sum): split a[0] (contracted)");
}

TEST(RuleProof, FindsAnArgumentThatShouldHaveBeenMadeLocal) {
  EXPECT_EQ(option_of(mistake(RuleEntry("a b -> a b"), "new_zeros: f[5,4], [5,4]")), "S(0) -> S(0): split a");
}

TEST(RuleProof, FindsAResultThatIsNoReduction) {
  // The second result of a maximum, the places, is no pending maximum of the parts.
  EXPECT_EQ(option_of(mistake(RuleEntry("a b -> b, b").reduce(ReduceOp::max), "max.dim: d[5,4], 0")),
            "S(0) -> P(max) P(max): split a (contracted)");
}

TEST(RuleProof, FindsAShapeThatIsNotTheOperators) {
  const std::string message = mistake(RuleEntry("a b -> a"), "sum.dim_IntList: f[5,4], [1], true");
  EXPECT_NE(message.find("has rank 2, not 1"), std::string::npos) << message;
}

TEST(RuleProof, FindsValuesThatWereSaidNotToMatter) {
  EXPECT_EQ(option_of(mistake(RuleEntry("... -> ...").shape_only("self"), "neg: f[5,4]")),
            "R -> R: replicate");
}

TEST(RuleProof, SaysWhatIsWrongOnOneScreen) {
  const std::string message = mistake(RuleEntry("a.. b -> a.. b"), "cumsum: n[4,4], 1");
  EXPECT_EQ(message.substr(0, message.find("differs by ")),
            "meshtorch: the rule of `cumsum` is wrong: result 0 ");
  EXPECT_EQ(message.substr(message.find('\n')),
            "\n  rule   a.. b -> a.. b\n"
            "  option S(1) -> S(1): split b\n"
            "  mesh   (2)\n"
            "  call   self (4, 4) Long, dim 1\n"
            "  seed   1\n"
            "  do: write a rule that does not give this option: `s!` for a dim that must be whole, no `+` or "
            "`*` before what is not linear");
}

}  // namespace
}  // namespace meshtorch::testing
