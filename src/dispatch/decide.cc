// Decides how a call runs: finds the rule, binds it, chooses the cheapest option, and says what the local
// call needs changed.
#include <ATen/ATen.h>
#include <ATen/core/enum_tag.h>

#include <algorithm>

#include "dispatch/fallback_policy.h"
#include "dispatch/foreign_error.h"
#include "dispatch/handler.h"
#include "local/kernel_operand.h"
#include "operator/bound_call.h"
#include "operator/corrections.h"
#include "operator/situation.h"
#include "rules/own_rules.h"

namespace meshtorch::internal {
namespace {

class Decider {
 public:
  Decider(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
          MeshImpl& mesh)
      : info_(info), operands_(operands), arguments_(arguments), mesh_(mesh) {}

  std::shared_ptr<Decision> run() {
    decision_->rules_version = rules_version();
    decision_->shapes = run_on_shapes();
    if (const RuleEntry* rule = info_.rule)
      call_ = BoundCall::bind(*rule, info_, operands_, arguments_, decision_->shapes);
    if (call_ && foretells_shapes() && choose_option()) return decision_;
    replicate();
    return decision_;
  }

 private:
  // Runs the operator on the global shapes alone, where LibTorch can: wrong arguments are found before
  // anything is sent, and the strides of the results become known.
  std::vector<at::Tensor> run_on_shapes() const {
    if (!info_.op.hasComputedKernelForDispatchKey(c10::DispatchKey::Meta)) return {};
    // What is given for the results may have any shape.
    if (std::ranges::any_of(info_.arguments, &ArgumentInfo::is_out)) return {};
    if (info_.op.hasTag(at::Tag::dynamic_output_shape)) return {};  // a kernel in Python may guess
    torch::jit::Stack stack(arguments_.begin(), arguments_.end());
    for (c10::IValue& value : stack) {
      if (value.isDevice()) value = c10::Device(at::kMeta);
    }
    for (const Operand& operand : operands_) {
      if (operand.element >= 0) return {};
      const at::Tensor& whole = operand.tensor;
      // A number has no device, and shape functions may ask for its value.
      const bool is_number = whole.unsafeGetTensorImpl()->is_wrapped_number();
      const at::TensorOptions options = whole.options().device(is_number ? at::kCPU : at::kMeta);
      const at::Tensor shape =
          is_number ? at::ones({}, options) : at::empty_strided(whole.sizes(), whole.strides(), options);
      stack[operand.argument] = as_kernel_operand(whole, shape);
    }
    try {
      info_.op.callBoxed(&stack);
    } catch (const c10::NotImplementedError&) {
      return {};
    } catch (const c10::Error&) {
      if (info_.rule != nullptr) throw;
      return {};  // it may only have missed values: the whole tensors will tell, on every rank
    } catch (const std::exception& error) {  // the shape function is of another language
      if (is_wrong_call(error, /*forgive=*/info_.rule == nullptr)) throw;
      return {};
    }
    std::vector<at::Tensor> shapes = tensors_in(stack);
    if (has_types_by_device(info_.name)) std::fill(shapes.begin() + 1, shapes.end(), at::Tensor());
    return shapes;
  }

  // False if the rule would give a result another shape than LibTorch does: some kernels broadcast what the
  // rule takes for the size of the result, and then the rule is not one of this call.
  bool foretells_shapes() const {
    const BoundRule& bound = *call_->bound();
    if (!bound.listed.empty()) return true;
    for (std::size_t i = 0; i < decision_->shapes.size(); ++i) {
      if (!decision_->shapes[i].defined()) continue;
      const BoundTensor& result = bound.result(result_of_tensor(bound, static_cast<int>(i)));
      const c10::IntArrayRef sizes = decision_->shapes[i].sizes();
      const bool has_tail = result.tail != BoundTensor::Tail::none;
      if (sizes.size() < result.shape.size() || (sizes.size() > result.shape.size() && !has_tail))
        return false;
      for (std::size_t d = 0; d < result.shape.size(); ++d) {
        if (result.shape[d] >= 0 && result.shape[d] != sizes[d]) return false;
      }
    }
    return true;
  }

  bool choose_option() {
    const Situation situation = situation_of(*call_, info_, operands_, mesh_);
    auto choice = choose(*call_->bound(), situation);
    // What has to be reduced, and was before, costs nothing now.
    if (Situation known = situation; choice && reduce_what_is_known(known, *choice))
      choice = choose(*call_->bound(), known);
    return choice && take(*choice, situation);
  }

  bool reduce_what_is_known(Situation& situation, const Choice& choice) const {
    bool is_any = false;
    for (std::size_t i = 0; i < call_->order().size(); ++i) {
      const Operand& operand = call_->operand(i);
      if (operand.reduced == nullptr || situation.pinned[i] || choice.operands[i] == situation.operands[i])
        continue;
      situation.operands[i] = operand.reduced->placements;
      is_any = true;
    }
    return is_any;
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
      decision_->layouts.push_back(mesh_.layout(placements));
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
    }
    if (info_.rule == nullptr && gathered > 0) note_replicated_operator(info_.name, gathered);
  }

  const OperatorInfo& info_;
  const Operands& operands_;
  c10::ArrayRef<c10::IValue> arguments_;
  MeshImpl& mesh_;
  std::unique_ptr<BoundCall> call_;  // null: no rule, or it does not fit
  std::shared_ptr<Decision> decision_ = std::make_shared<Decision>();
};

// Only the local result tells the size of some dim, or the number of dims.
bool has_open_sizes(const BoundTensor& result) {
  return result.tail == BoundTensor::Tail::unknown || std::ranges::count(result.shape, -1) > 0;
}

}  // namespace

std::shared_ptr<Decision> decide(const OperatorInfo& info, const Operands& operands,
                                 c10::ArrayRef<c10::IValue> arguments, MeshImpl& mesh) {
  return Decider(info, operands, arguments, mesh).run();
}

ResultPlan measured_plan(const Decision& decision, MeshImpl& mesh, std::size_t index,
                         const at::Tensor& local) {
  ResultPlan plan;
  plan.layout = mesh.replicated();
  plan.is_open = true;
  if (!local.defined()) return plan;
  TORCH_CHECK_NOT_IMPLEMENTED(local.layout() == at::kStrided && !local.is_quantized() && !local.is_nested(),
                              "meshtorch: distributed tensors are dense, and a result is not\n  result ",
                              index, ": ", local.is_nested() ? "nested, " : "", local.scalar_type(),
                              ", layout ", local.layout(),
                              "\n  do: call the operator on full_tensor() or to_local()");
  plan.sizes = local.sizes().vec();
  if (decision.bound) {
    const int r = result_of_tensor(*decision.bound, static_cast<int>(index));
    plan.layout = decision.layouts[static_cast<std::size_t>(r)];
    plan.sizes = result_shape(*decision.bound, r, local.sizes().vec());
    plan.is_open = has_open_sizes(decision.bound->result(r));
  }
  plan.strides = plan.layout->is_replicated ? local.strides().vec() : dense_strides(plan.sizes);
  return plan;
}

void complete(Decision& decision, MeshImpl& mesh, const std::vector<at::Tensor>& local_results,
              bool is_view) {
  const bool has_shapes = decision.shapes.size() == local_results.size();
  for (std::size_t i = 0; i < local_results.size(); ++i) {
    const at::Tensor& local = local_results[i];
    decision.results.push_back(measured_plan(decision, mesh, i, local));
    if (!local.defined()) continue;
    ResultPlan& plan = decision.results.back();
    const bool has_shape = has_shapes && decision.shapes[i].defined();
    // Nothing else tells the shape of a split result whose rule only lists options.
    const bool is_listed = decision.bound && !decision.bound->listed.empty() && !plan.layout->is_replicated;
    TORCH_CHECK_NOT_IMPLEMENTED(has_shape || !is_listed,
                                "meshtorch: the shape of a split result is not known\n  result ", i, ": ",
                                to_string(plan.layout->placements),
                                "\n  do: register a shape function of the operator (Meta, register_fake)");
    if (!has_shape) continue;
    const at::Tensor& expected = decision.shapes[i];
    TORCH_INTERNAL_ASSERT(local.scalar_type() == expected.scalar_type(), "result ", i, " is ",
                          local.scalar_type(), " on this rank, and ", expected.scalar_type(),
                          " in the run on shapes");
    if (is_listed) plan.sizes = expected.sizes().vec();
    if (expected.sizes() != c10::IntArrayRef(plan.sizes)) continue;
    plan.is_open = false;
    plan.offset = expected.storage_offset();
    // A view lies as its base does, which may have been moved to be taken a view of.
    if (is_view || !plan.layout->is_replicated) plan.strides = expected.strides().vec();
  }
  decision.shapes.clear();
  // Only what each call has to measure anew needs the rule again; it is the largest part of a decision.
  if (std::ranges::none_of(decision.results, &ResultPlan::is_open)) decision.bound.reset();
}

}  // namespace meshtorch::internal
