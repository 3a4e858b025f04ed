// Decides how a call runs: finds the rule, binds it, chooses the cheapest option, and says what the local
// call needs changed.
#include <ATen/ATen.h>

#include <algorithm>

#include "dispatch/fallback_policy.h"
#include "dispatch/handler.h"
#include "operator/rule_call.h"
#include "operator/situation.h"
#include "rules/own_rules.h"

namespace meshtorch {
namespace {

class Decider {
 public:
  Decider(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
          MeshImpl& mesh)
      : info_(info), operands_(operands), arguments_(arguments), mesh_(mesh) {}

  std::shared_ptr<Decision> run() {
    decision_->rules_version = rules_version();
    decision_->shapes = run_on_shapes();
    if (const RuleEntry* rule = info_.rule) call_ = RuleCall::bind(*rule, info_, operands_, arguments_);
    if (call_ && choose_option()) return decision_;
    replicate();
    return decision_;
  }

 private:
  // Runs the operator on the global shapes alone, where LibTorch can: wrong arguments are found before
  // anything is sent, and the strides of the results become known.
  std::vector<at::Tensor> run_on_shapes() const {
    if (info_.writes || !info_.op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
    torch::jit::Stack stack(arguments_.begin(), arguments_.end());
    for (const Operand& operand : operands_) {
      if (operand.element >= 0) return {};
      stack[operand.argument] = at::empty_strided(operand.tensor.sizes(), operand.tensor.strides(),
                                                  operand.tensor.options().device(at::kMeta));
    }
    try {
      info_.op.callBoxed(&stack);
    } catch (const c10::NotImplementedError&) {
      return {};
    } catch (const c10::Error&) {
      if (info_.rule != nullptr) throw;
      return {};  // it may only have missed values: the whole tensors will tell, on every rank
    }
    return tensors_in(stack);
  }

  bool choose_option() {
    const Situation situation = situation_of(*call_, info_, operands_, mesh_);
    const auto choice = choose(*call_->bound(), situation);
    return choice && take(*choice, situation);
  }

  bool take(const Choice& choice, const Situation& situation) {
    if (!call_->suits_kernels(choice, mesh_.shape())) return false;
    auto changes = call_->local_changes(choice, mesh_.shape(), coordinate_in(mesh_));
    if (!changes) return false;
    decision_->changes = *std::move(changes);
    decision_->moves.assign(operands_.size(), nullptr);
    for (std::size_t i = 0; i < call_->order().size(); ++i) {
      if (choice.operands[i] == situation.operands[i]) continue;
      decision_->moves[call_->order()[i]] = mesh_.layout(choice.operands[i]);
    }
    for (const Placements& placements : choice.results)
      decision_->results.push_back({mesh_.layout(placements), {}, {}});
    decision_->bound = call_->bound();
    return true;
  }

  // Always right: every operand whole on every rank, and so is every result. What is written is brought back
  // to where it was.
  void replicate() {
    decision_->moves.assign(operands_.size(), nullptr);
    const Layout* replicated = mesh_.replicated();
    std::int64_t gathered = 0;
    for (std::size_t o = 0; o < operands_.size(); ++o) {
      const Operand& operand = operands_[o];
      if (operand.meta == nullptr || operand.meta->layout == replicated) continue;
      decision_->moves[o] = replicated;
      gathered += operand.tensor.numel() * static_cast<std::int64_t>(operand.tensor.element_size());
      if (info_.arguments[operand.argument].is_written) decision_->restores.push_back(o);
    }
    if (info_.rule == nullptr && gathered > 0) note_replicated_operator(info_.name, gathered);
  }

  const OperatorInfo& info_;
  const Operands& operands_;
  c10::ArrayRef<c10::IValue> arguments_;
  MeshImpl& mesh_;
  std::unique_ptr<RuleCall> call_;  // null: no rule, or it does not fit
  std::shared_ptr<Decision> decision_ = std::make_shared<Decision>();
};

}  // namespace

std::shared_ptr<Decision> decide(const OperatorInfo& info, const Operands& operands,
                                 c10::ArrayRef<c10::IValue> arguments, MeshImpl& mesh) {
  return Decider(info, operands, arguments, mesh).run();
}

void complete(Decision& decision, MeshImpl& mesh, const std::vector<at::Tensor>& local_results) {
  const Layout* replicated = mesh.replicated();
  std::vector<ResultPlan> plans;
  for (std::size_t i = 0; i < local_results.size(); ++i) {
    const at::Tensor& local = local_results[i];
    plans.push_back({replicated, {}, {}});
    if (!local.defined()) continue;
    ResultPlan& plan = plans.back();
    plan.sizes = local.sizes().vec();
    if (decision.bound) {
      const int r = result_of_tensor(*decision.bound, static_cast<int>(i));
      plan.layout = decision.results[static_cast<std::size_t>(r)].layout;
      plan.sizes = result_shape(*decision.bound, r, local.sizes().vec());
    }
    const bool has_shape = decision.shapes.size() == local_results.size() && decision.shapes[i].defined();
    if (plan.layout->is_replicated) {
      plan.strides = local.strides().vec();
    } else if (has_shape && decision.shapes[i].sizes() == c10::IntArrayRef(plan.sizes)) {
      plan.strides = decision.shapes[i].strides().vec();
    } else {
      plan.strides = dense_strides(plan.sizes);
    }
  }
  decision.results = std::move(plans);
  decision.bound = nullptr;
  decision.shapes.clear();
}

}  // namespace meshtorch
