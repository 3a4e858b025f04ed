// The proof of all rules: every claim of every rule, on simulated ranks, against the plain operator.
#include "prove/prove.h"

#include <set>

#include "calls.h"
#include "prove/call_check.h"

namespace meshtorch::testing {
namespace {

using torch::Tensor;

// Proves each call that differs from those before it, and remembers which rules were bound.
class Prover {
 public:
  void prove_call(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
    if (info.rule == nullptr || !seen_.insert(info.name + ": " + describe_arguments(info, arguments)).second)
      return;
    count(info, meshtorch::prove(info, *info.rule, arguments));
    count(info, meshtorch::prove(info, *info.rule, arguments,
                                 {.meshes = {{2, 2}, {3, 2}}, .with_smaller_calls = false}));
  }

  // Runs forward and backward on a mesh of one rank, and proves every operator that comes along.
  void prove_sample(const Sample& sample) {
    set_call_check(
        [&](const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) { prove_call(info, arguments); });
    const mt::DeviceMesh mesh = line(1);
    const auto distributed = [&](const Tensor& t) -> Tensor {
      return mt::distribute_tensor(t, mesh, {mt::Replicate()});
    };
    std::vector<Tensor> inputs;
    for (const Tensor& t : sample.inputs) inputs.push_back(distributed(t));
    run_sample(sample, inputs, distributed);
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
  std::set<std::string> mistaken_;  // one message an operator
};

bool runs_plain(const Sample& sample) {
  try {
    run_sample(sample, sample.inputs, [](const Tensor& w) { return w; });
    return true;
  } catch (const std::exception&) {
    return false;  // it has no derivative
  }
}

TEST(RuleProof, EveryClaimOfEveryRuleHolds) {
  set_fallback_policy(FallbackPolicy::silent);
  Prover prover;
  on_ranks(1, [&](int) {
    for (const Sample& sample : all_samples()) prover.prove_sample(sample);
    for (const Call& call : all_calls()) {
      prover.prove_call(operator_named(call.op), arguments_of(call));
      const Sample sample = sample_of(call);
      if (runs_plain(sample)) prover.prove_sample(sample);
    }
  });
  set_fallback_policy(FallbackPolicy::warn);
  std::string missing;
  for (const auto& [name, entry] : rule_table().entries()) {
    if (!prover.proved.contains(name)) missing += " " + name;
  }
  EXPECT_EQ(missing, "") << "add a line for each of these to one of the tables in tests/sim";
  std::cout << prover.calls << " calls, " << prover.claims << " claims, " << prover.passed_over
            << " passed over\n";
}

}  // namespace
}  // namespace meshtorch::testing
