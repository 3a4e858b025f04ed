// Rules of a user's own operators: in force at once, checked against the schema, proved in debug mode.
#include "../dist/numbers.h"
#include "operator/operator.h"
#include "rules/own_rules.h"

namespace meshtorch::testing {
namespace {

using mt::RuleChecks;
using torch::Tensor;

Tensor twice_plus(const Tensor& a, const Tensor& b) { return a * 2 + b; }
Tensor row_softmax(const Tensor& a, int64_t dim) { return torch::softmax(a, dim); }

TORCH_LIBRARY(rule_test, library) {
  library.def("twice_plus(Tensor a, Tensor b) -> Tensor");
  library.def("row_softmax(Tensor self, int dim) -> Tensor");
  library.def("later(Tensor a, Tensor b) -> Tensor");
  library.def("changing(Tensor a, Tensor b) -> Tensor");
  library.def("composite(Tensor a) -> Tensor", [](const Tensor& a) { return a + 1; });
}
TORCH_LIBRARY_IMPL(rule_test, CPU, library) {
  library.impl("twice_plus", twice_plus);
  library.impl("row_softmax", row_softmax);
  library.impl("later", twice_plus);
  library.impl("changing", twice_plus);
}

Tensor call(const char* name, const std::vector<c10::IValue>& arguments) {
  torch::jit::Stack stack = arguments;
  c10::Dispatcher::singleton().findSchemaOrThrow(name, "").callBoxed(&stack);
  return stack.at(0).toTensor();
}

// What is proved, for the life of the object.
class Checks {
 public:
  explicit Checks(RuleChecks checks) : before_(mt::rule_checks()) { mt::set_rule_checks(checks); }
  ~Checks() { mt::set_rule_checks(before_); }
  Checks(const Checks&) = delete;
  Checks& operator=(const Checks&) = delete;

 private:
  RuleChecks before_;
};

TEST(RegisterRule, AnOperatorOfOnesOwnRunsOnShards) {
  mt::register_rule("rule_test::twice_plus", "+..., +... -> ...");
  on_ranks(3, [](int) {
    const Tensor a = numbers({5, 4}), b = numbers({4}, torch::kFloat, 2);
    const mt::DeviceMesh mesh = line(3);
    const mt::DTensor split = mt::distribute_tensor(a, mesh, {mt::Shard(0)});
    const mt::DTensor whole = mt::distribute_tensor(b, mesh, {mt::Replicate()});
    const mt::CommDebugMode comm;
    const mt::DTensor result(call("rule_test::twice_plus", {Tensor(split), Tensor(whole)}));
    EXPECT_EQ(comm.get_total_counts(), 0);
    EXPECT_EQ(result.placements(), mt::Placements{mt::Shard(0)});
    EXPECT_TRUE(is_equal(result.full_tensor(), twice_plus(a, b)));
  });
}

TEST(RegisterRule, ARuleRegisteredAfterTheFirstCallCountsFromThenOn) {
  on_ranks(2, [](int rank) {
    const mt::DeviceMesh mesh = line(2);
    const Tensor a = numbers({4, 4});
    const mt::DTensor split = mt::distribute_tensor(a, mesh, {mt::Shard(0)});
    const auto placements = [&] {
      return mt::DTensor(call("rule_test::later", {Tensor(split), Tensor(split)})).placements();
    };
    mt::set_fallback_policy(mt::FallbackPolicy::silent);
    EXPECT_EQ(placements(), mt::Placements{mt::Replicate()});
    mt::set_fallback_policy(mt::FallbackPolicy::warn);
    mt::barrier();
    if (rank == 0) mt::register_rule("rule_test::later", "+..., +... -> ...");
    mt::barrier();
    EXPECT_EQ(placements(), mt::Placements{mt::Shard(0)});
  });
}

TEST(RegisterRule, WhatACallDecidesWhileARuleIsPutInForceDoesNotOutliveIt) {
  on_ranks(1, [](int) {
    const mt::DTensor split = mt::distribute_tensor(numbers({4, 4}), line(1), {mt::Shard(0)});
    const auto placements = [&] {
      return mt::DTensor(call("rule_test::changing", {Tensor(split), Tensor(split)})).placements();
    };
    mt::register_rule("rule_test::changing", "_.., _.. -> _..");
    EXPECT_EQ(placements(), mt::Placements{mt::Replicate()});
    // The two steps of register_rule, with the call of another thread between them.
    internal::set_own_rule("rule_test::changing", internal::RuleEntry("+..., +... -> ..."));
    placements();
    internal::refresh_rules();
    EXPECT_EQ(placements(), mt::Placements{mt::Shard(0)});
  });
}

TEST(RegisterRule, AWrongRuleIsFoundOnItsSampleAndNotPutInForce) {
  const Checks checks(RuleChecks::own);
  const std::string error = error_of([] {
    mt::register_rule("rule_test::row_softmax", "a.. s b.. -> a.. s b..",
                      {.at = {{"s", "dim"}}, .samples = {{torch::ones({4, 4}, torch::kDouble), 1}}});
  });
  EXPECT_EQ(error,
            "meshtorch: the rule of `rule_test::row_softmax` is wrong: result 0 differs by 0.25\n"
            "  rule   a.. s b.. -> a.. s b..\n"
            "  option S(1) -> S(1): split s\n"
            "  mesh   (2)\n"
            "  call   self (4, 4) Double, dim 1\n"
            "  seed   1\n"
            "  do: write a rule that does not give this option: `s!` for a dim that must be whole, no `+` or "
            "`*` before what is not linear");
  mt::register_rule("rule_test::row_softmax", "a.. s! b.. -> a.. s! b..",
                    {.at = {{"s", "dim"}}, .samples = {{torch::ones({4, 4}, torch::kDouble), 1}}});
}

TEST(RegisterRule, AWrongRuleWithoutSamplesIsFoundAtItsFirstCall) {
  const Checks checks(RuleChecks::own);
  mt::register_rule("rule_test::row_softmax", "a.. s b.. -> a.. s b..", {.at = {{"s", "dim"}}});
  on_ranks(2, [](int) {
    const mt::DTensor split = mt::distribute_tensor(numbers({4, 5}), line(2), {mt::Shard(1)});
    const std::string error = error_of([&] { call("rule_test::row_softmax", {Tensor(split), 1}); });
    EXPECT_NE(error.find("option S(1) -> S(1): split s"), std::string::npos) << error;
  });
  mt::register_rule("rule_test::row_softmax", "a.. s! b.. -> a.. s! b..", {.at = {{"s", "dim"}}});
}

TEST(RegisterRule, NothingIsProvedUnlessAsked) {
  const Checks checks(RuleChecks::none);
  mt::register_rule("rule_test::row_softmax", "a.. s b.. -> a.. s b..",
                    {.at = {{"s", "dim"}}, .samples = {{torch::ones({4, 4}), 1}}});
  mt::register_rule("rule_test::row_softmax", "a.. s! b.. -> a.. s! b..", {.at = {{"s", "dim"}}});
}

TEST(RegisterRule, OtherOperatorsPayNothingForTheProofOfOnesOwn) {
  const Checks checks(RuleChecks::own);
  on_ranks(2, [](int) {
    const Tensor split = mt::distribute_tensor(numbers({4, 7}), line(2), {mt::Shard(0)});
    const mt::CommDebugMode comm;
    torch::relu(split).mul_(2);
    EXPECT_EQ(comm.get_total_counts(), 0);
  });
}

TEST(RegisterRule, TensorsWithoutDataAreProvedNothing) {
  const Checks checks(RuleChecks::all);
  on_ranks(2, [](int) {
    const Tensor empty = mt::empty({4, 6}, line(2), {mt::Shard(0)}, torch::kMeta);
    EXPECT_EQ((empty + 1).sizes(), empty.sizes());
  });
}

TEST(RegisterRule, AllRulesCanBeProvedOnTheCallsOfAProgram) {
  const Checks checks(RuleChecks::all);
  on_ranks(2, [](int) {
    const mt::DTensor split = mt::distribute_tensor(numbers({4, 5}), line(2), {mt::Shard(1)});
    EXPECT_TRUE(is_close(mt::DTensor(torch::softmax(Tensor(split), 1)).full_tensor(),
                         torch::softmax(numbers({4, 5}), 1)));
  });
}

TEST(RegisterRule, ATextMadeAtRunTimeIsChecked) {
  const std::string message =
      error_of([] { mt::register_rule("rule_test::twice_plus", mt::Rule::parse("a, b")); });
  EXPECT_EQ(message.substr(0, message.find('\n')), "meshtorch: malformed rule: a rule needs '->'");
  EXPECT_NE(message.find("do: write operands -> results"), std::string::npos) << message;
}

TEST(RegisterRule, ErrorsSayWhatToDo) {
  EXPECT_EQ(error_of([] { mt::register_rule("rule_test::unknown", "a -> a"); }),
            "meshtorch: there is no operator `rule_test::unknown`\n  do: give its namespace and overload "
            "(`aten::add.Tensor`), and register it before its rule");
  EXPECT_EQ(
      error_of([] { mt::register_rule("rule_test::twice_plus", "a -> a"); }),
      "meshtorch: the rule of `rule_test::twice_plus` has 1 operands and 1 results, the operator 2 tensor "
      "arguments and 1 results\n  rule   a -> a\n  schema rule_test::twice_plus(Tensor a, Tensor b) -> "
      "Tensor\n  do: write one tensor for each, in schema order");
  EXPECT_EQ(error_of([] { mt::register_rule("rule_test::row_softmax", "a -> a", {.at = {{"a", "axis"}}}); }),
            "meshtorch: the rule of `rule_test::row_softmax` names the argument axis, which the operator has "
            "not\n  schema rule_test::row_softmax(Tensor self, int dim) -> Tensor\n  do: take one of its "
            "argument names");
  EXPECT_EQ(
      error_of([] { mt::register_rule("rule_test::composite", "a -> a"); }),
      "meshtorch: `rule_test::composite` does not run by a rule of its own\n  it is composite: LibTorch "
      "decomposes it\n  do: register rules for the operators that it calls");
  EXPECT_EQ(error_of([] { mt::register_rule("add_.Tensor", "..., ... -> ..."); }),
            "meshtorch: `add_.Tensor` does not run by a rule of its own\n  it is an in-place or out= "
            "variant\n  do: register the rule of the functional operator: its variants follow it");
  EXPECT_EQ(error_of([] { mt::register_rule("mean", "... -> ..."); }),
            "meshtorch: `mean` does not run by a rule of its own\n  it is one of those that no rule "
            "describes\n  do: leave it as it is: meshtorch runs it in its own way");
  const Checks checks(RuleChecks::own);
  EXPECT_EQ(error_of([] {
              mt::register_rule("rule_test::row_softmax", "a s! -> a s!",
                                {.samples = {{torch::ones({4}), 0}}});
            }),
            "meshtorch: the rule of `rule_test::row_softmax` does not fit a sample of its own\n  rule   a s! "
            "-> a s!\n  sample self (4) Float, dim 0\n  do: give arguments that the operator takes, of the "
            "ranks that the rule says");
  EXPECT_EQ(
      error_of([] {
        mt::register_rule("rule_test::row_softmax", "a s! -> a s!", {.samples = {{torch::ones({4})}}});
      }),
      "meshtorch: argument dim of `rule_test::row_softmax` is missing, and has no default\n  schema "
      "rule_test::row_softmax(Tensor self, int dim) -> Tensor\n  do: give its arguments in schema order");
}

}  // namespace
}  // namespace meshtorch::testing
