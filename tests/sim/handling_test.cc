// The table of handlings: nothing in it is out of reach, and each correction of LibTorch is needed, and no
// other.
#include <set>

#include "../dist/samples.h"
#include "dispatch/mixing.h"
#include "operator/corrections.h"
#include "operator/decomposition.h"
#include "operator/operator.h"
#include "runtime/key.h"
#include "tensor/meta.h"

namespace meshtorch::testing {
using namespace internal;
namespace {

using Names = std::set<std::string>;

std::vector<c10::OperatorHandle> all_operators() {
  std::vector<c10::OperatorHandle> found;
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    const auto op = dispatcher.findSchema(name);
    if (op && name.name.starts_with("aten::")) found.push_back(*op);
  }
  return found;
}

TEST(HandlingTest, EveryRuleCanBeReached) {
  for (const auto& [name, entry] : rule_table().entries()) {
    if (is_of_another_version(name)) continue;
    const OperatorInfo& info = internal::operator_named(name);
    const bool is_asked =
        info.handling.kind == Handling::Kind::decomposition && info.handling.decomposition->traits.asks_rule;
    EXPECT_TRUE(info.handling.kind == Handling::Kind::rule || is_asked) << name << " is " << describe(info);
  }
}

TEST(HandlingTest, ADecompositionThatAsksARuleHasOne) {
  for (const auto& [name, decomposition] : decompositions().entries()) {
    if (is_of_another_version(name)) continue;
    EXPECT_EQ(internal::operator_named(name).rule != nullptr, decomposition.traits.asks_rule) << name;
  }
}

Names without(const Names& all, const Names& taken) {
  Names left;
  std::ranges::set_difference(all, taken, std::inserter(left, left.end()));
  return left;
}

// The parts of a composite operator are corrected one by one.
bool is_composite(const c10::OperatorHandle& op) {
  return op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
}

// The arguments that a plain call of the operator changed, though its schema does not say so: "op argument".
void collect_unsaid_writes(const Call& call, Names& found) {
  std::vector<torch::Tensor> given = call.tensors();
  std::vector<torch::Tensor> before;
  for (const torch::Tensor& t : given) before.push_back(t.clone());
  torch::jit::Stack stack = call.stack(given);
  try {
    call.op.callBoxed(&stack);
  } catch (const std::exception&) {
    return;
  }
  const auto arguments = call.arguments_of_tensors();
  for (std::size_t i = 0; i < given.size(); ++i) {
    const c10::Argument& argument = call.op.schema().arguments()[arguments[i]];
    const bool is_same =
        given[i].sizes() == before[i].sizes() && at::allclose(given[i], before[i], 0, 0, /*equal_nan=*/true);
    if (!is_written(argument) && !is_same) found.insert(call.name() + " " + argument.name());
  }
}

TEST(Corrections, ListEveryArgumentThatIsWrittenUnsaid) {
  Names found;
  for (const c10::OperatorHandle& op : all_operators()) {
    if (is_composite(op)) continue;
    for (const Call& call : samples_of(op)) collect_unsaid_writes(call, found);
  }
  Names listed;
  for (const NamedArgument& w : written_arguments())
    listed.insert(std::string(w.op) + " " + std::string(w.argument));
  EXPECT_EQ(without(found, listed), Names()) << "are to be listed";
  EXPECT_EQ(without(listed, found), Names()) << "are listed for nothing";
}

// Whether a derivative of the operator is a plain tensor where all tensors are distributed.
bool has_plain_gradient(const Call& call, const mt::DeviceMesh& mesh) {
  std::vector<torch::Tensor> given = call.tensors();
  std::vector<torch::Tensor> leaves;
  const auto arguments = call.arguments_of_tensors();
  for (std::size_t i = 0; i < given.size(); ++i) {
    torch::Tensor& t = given[i];
    t = mt::distribute_tensor(t, mesh, {mt::Replicate()});
    if (!t.is_floating_point() && !t.is_complex()) continue;
    leaves.push_back(t.detach().requires_grad_());
    t = is_written(call.op.schema().arguments()[arguments[i]]) ? leaves.back().clone() : leaves.back();
  }
  torch::jit::Stack stack = call.stack(given);
  std::vector<torch::Tensor> outputs, weights;
  {
    const c10::impl::ExcludeDispatchKeyGuard unguarded(kCompositeKey);
    const InsideComposite inside;
    call.op.callBoxed(&stack);
  }
  for (const c10::IValue& value : stack) {
    if (!value.isTensor() || !value.toTensor().defined() || !value.toTensor().requires_grad()) continue;
    outputs.push_back(value.toTensor());
    weights.push_back(torch::ones_like(outputs.back()));
  }
  if (outputs.empty() || leaves.empty()) return false;
  const auto gradients = torch::autograd::grad(outputs, leaves, weights, {}, false, /*allow_unused=*/true);
  return std::ranges::any_of(gradients,
                             [](const torch::Tensor& g) { return g.defined() && meta_of(g) == nullptr; });
}

// The samples of the operator, and calls that no other test needs.
std::vector<Call> calls_of(const c10::OperatorHandle& op) {
  std::vector<Call> calls = samples_of(op);
  const std::string name = name_of(op.operator_name());
  for (const char* arguments : {"f[5,4], 1", "f[5,4], f[5,4]", "p[5,4]", "f[5,4], p[5,4]", "f[5,4], q[5,4]",
                                "f[5,4], [0, 1]", "f[5,4], [3, 0], [1, 1]"}) {
    try {
      calls.push_back(Call::parse(name + ": " + arguments));
    } catch (const std::exception&) {
      // They are not its arguments.
    }
  }
  return calls;
}

TEST(Corrections, ListEveryDerivativeOfPlainZeros) {
  Names found;
  mt::spawn(1, [&](int) {
    const mt::DeviceMesh mesh = mt::init_device_mesh(torch::kCPU, {1});
    for (const c10::OperatorHandle& op : all_operators()) {
      const std::string name = name_of(op.operator_name());
      const bool is_listed = has_plain_zero_gradient(name);
      if (is_composite(op) && !is_listed) continue;
      for (const Call& call : is_listed ? calls_of(op) : samples_of(op)) {
        try {
          if (has_plain_gradient(call, mesh)) found.insert(name);
        } catch (const std::exception&) {
          // Not differentiable, or refused.
        }
      }
    }
  });
  Names listed;
  for (const std::string_view name : plain_zero_gradients()) listed.insert(std::string(name));
  EXPECT_EQ(without(found, listed), Names()) << "are to be listed";
  EXPECT_EQ(without(listed, found), Names()) << "are listed for nothing";
}

}  // namespace
}  // namespace meshtorch::testing
