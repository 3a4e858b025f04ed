// The proof of all rules: every claim of every rule, on simulated ranks, against the plain operator.
#include "prove/prove.h"

#include <set>

#include "../dist/numbers.h"
#include "../dist/placed_call.h"
#include "../dist/samples.h"
#include "pointwise_calls.h"
#include "prove/call_check.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

// Proves each call that differs from those before it, and remembers which rules were bound.
class Prover {
 public:
  void prove_call(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
    if (info.rule == nullptr || !seen_.insert(info.name + ": " + describe_arguments(info, arguments)).second)
      return;
    // The first call of an operator is proved in depth. Common operators come along in hundreds: enough.
    const int number = ++calls_of_[info.name];
    if (number > 10) return;
    const bool in_depth = number == 1;
    count(info, internal::prove(info, *info.rule, arguments, {.with_smaller_calls = in_depth}));
    if (in_depth)
      count(info, internal::prove(info, *info.rule, arguments,
                                  {.meshes = {{2, 2}, {3, 2}}, .with_smaller_calls = false}));
  }

  // The call itself; then, forward and backward on a mesh of one rank, every operator that comes along.
  void prove_sample(const Call& call) {
    prove_call(operator_info(call.op), call.stack(call.tensors()));
    const std::optional<Run> expected = plain_run(call);
    if (!expected) return;
    set_call_check({.check = [&](const OperatorInfo& info,
                                 c10::ArrayRef<c10::IValue> arguments) { prove_call(info, arguments); },
                    .is_for = {}});
    const std::vector<mt::Placements> whole(call.tensors().size(), {mt::Replicate()});
    try {
      run_on_rank({call, {1}, whole}, line(1), *expected);
    } catch (const std::exception& error) {
      ADD_FAILURE() << call.to_string() << "\n" << error.what();
    }
    set_call_check({});
  }

  std::set<std::string> proved;  // names of rules
  std::int64_t calls = 0, claims = 0, passed_over = 0;

 private:
  void count(const OperatorInfo& info, const Proof& proof) {
    if (!proof.is_bound) return;
    ++calls;
    claims += proof.claims;
    passed_over += proof.passed_over;
    if (proof.claims > 0) proved.insert(info.name);
    if (!proof.mistakes.empty() && mistaken_.insert(info.name).second)
      ADD_FAILURE() << proof.mistakes[0] << "\n  and " << proof.mistakes.size() - 1 << " more of this call";
  }

  std::set<std::string> seen_;
  std::map<std::string, int> calls_of_;
  std::set<std::string> mistaken_;  // one message an operator
};

TEST(RuleProof, EveryClaimOfEveryRuleHolds) {
  set_fallback_policy(FallbackPolicy::silent);
  torch::set_num_threads(1);  // the tensors are tiny
  Prover prover;
  on_ranks(1, [&](int) {
    for (const Call& call : all_samples()) prover.prove_sample(call);
    for (const Call& call : pointwise_calls()) prover.prove_sample(call);
  });
  set_fallback_policy(FallbackPolicy::warn);
  std::string missing;
  for (const auto& [name, entry] : rule_table().entries()) {
    if (!prover.proved.contains(name) && !is_of_another_version(name)) missing += " " + name;
  }
  EXPECT_EQ(missing, "") << "add a line for each of these to tests/dist/samples.txt";
  std::cout << prover.calls << " calls, " << prover.claims << " claims, " << prover.passed_over
            << " passed over\n";
}

}  // namespace
}  // namespace meshtorch::testing
