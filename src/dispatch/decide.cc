// Decides how a call runs: finds the rule, binds it, chooses the cheapest option, and says what the local
// call needs changed.
#include <ATen/ATen.h>

#include <algorithm>
#include <stdexcept>

#include "dispatch/fallback_policy.h"
#include "dispatch/stack_call.h"
#include "propagate/choose.h"

namespace meshtorch {
namespace {

class Decider {
 public:
  Decider(const OperatorInfo& info, const Operands& operands, c10::ArrayRef<c10::IValue> arguments,
          MeshImpl& mesh)
      : info_(info),
        operands_(operands),
        arguments_(arguments),
        mesh_(mesh),
        call_(info, operands, arguments) {}

  std::shared_ptr<Decision> run() {
    decision_->shapes = run_on_shapes();
    if (info_.rule != nullptr && bind_rule() && choose_option()) return decision_;
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
    }
    return tensors_in(stack);
  }

  // Out arguments are no operands of the rule.
  bool is_rule_operand(std::size_t argument) const {
    return info_.arguments[argument].kind != ArgumentInfo::Kind::other && !info_.arguments[argument].is_out;
  }

  Placements placements_of(const Operand& operand) const {
    return operand.meta != nullptr ? operand.meta->layout->placements : mesh_.replicated()->placements;
  }

  bool bind_rule() {
    use_ = std::make_unique<RuleUse>(info_.rule->use(call_));
    std::vector<std::vector<Shape>> shapes;
    for (std::size_t i = 0; i < info_.arguments.size(); ++i) {
      if (!is_rule_operand(i)) continue;
      shapes.emplace_back();
      for (std::size_t o = 0; o < operands_.size(); ++o) {
        if (operands_[o].argument != i) continue;
        shapes.back().push_back(operands_[o].tensor.sizes().vec());
        order_.push_back(o);
      }
    }
    try {
      bound_ = std::make_shared<BoundRule>(meshtorch::bind(use_->rule, shapes, use_->hints));
      return true;
    } catch (const std::invalid_argument&) {
      // Shapes that the rule does not know, or that are wrong: the operator itself will say.
      return false;
    }
  }

  bool choose_option() {
    Situation situation;
    situation.mesh = mesh_.shape();
    situation.axis_costs = mesh_.axis_costs();
    situation.contracted = use_->contracted;
    std::int64_t item_size = 4;
    for (const std::size_t o : order_) {
      const Operand& operand = operands_[o];
      Placements placements = placements_of(operand);
      const auto& only_shape = use_->shape_only;
      if (std::find(only_shape.begin(), only_shape.end(), info_.arguments[operand.argument].name) !=
          only_shape.end()) {
        for (Placement& p : placements) {
          if (p.is_partial()) p = Replicate();
        }
      }
      situation.operands.push_back(std::move(placements));
      situation.pinned.push_back(info_.arguments[operand.argument].is_written);
      item_size = std::max(item_size, static_cast<std::int64_t>(operand.tensor.element_size()));
    }
    situation.item_sizes.assign(bound_->tensors.size(), item_size);
    situation.wanted_results = wanted_results();
    const auto choice = choose(*bound_, situation);
    return choice && take(*choice, situation);
  }

  // A result that is an argument lies as the argument does.
  std::vector<std::optional<Placements>> wanted_results() const {
    std::vector<std::optional<Placements>> wanted(static_cast<std::size_t>(bound_->result_count()));
    for (int r = 0; r < bound_->result_count(); ++r) {
      const BoundTensor& result = bound_->result(r);
      const Operand* written = written_by(static_cast<std::size_t>(result.argument), result.element);
      if (written != nullptr) wanted[static_cast<std::size_t>(r)] = placements_of(*written);
    }
    return wanted;
  }

  // The operand that result number `result` of the functional operator is written to, null if it is a new
  // tensor.
  const Operand* written_by(std::size_t result, int element) const {
    const int argument =
        result < info_.returned_argument.size() ? info_.returned_argument[result] : written_argument(result);
    for (const Operand& operand : operands_) {
      if (static_cast<int>(operand.argument) == argument && operand.element == element) return &operand;
    }
    return nullptr;
  }

  // Operators that return nothing, as the in-place ones on lists do, write their results in order.
  int written_argument(std::size_t result) const {
    std::size_t next = 0;
    for (std::size_t i = 0; i < info_.arguments.size(); ++i) {
      if (info_.arguments[i].is_written && next++ == result) return static_cast<int>(i);
    }
    return -1;
  }

  // True if the last rank of each axis, whose part is the smallest, has elements of every tensor that has
  // any.
  bool leaves_no_shard_empty(const Choice& choice) const {
    Shape last = mesh_.shape();
    for (std::int64_t& index : last) --index;
    for (std::size_t i = 0; i < order_.size(); ++i) {
      const Shape shape = operands_[order_[i]].tensor.sizes().vec();
      const Shape smallest = local_shape(shape, choice.operands[i], mesh_.shape(), last);
      for (std::size_t dim = 0; dim < shape.size(); ++dim) {
        if (shape[dim] > 0 && smallest[dim] == 0) return false;
      }
    }
    return true;
  }

  bool take(const Choice& choice, const Situation& situation) {
    if (use_->needs_elements && !leaves_no_shard_empty(choice)) return false;
    decision_->moves.assign(operands_.size(), nullptr);
    for (std::size_t i = 0; i < order_.size(); ++i) {
      if (choice.operands[i] == situation.operands[i]) continue;
      decision_->moves[order_[i]] = mesh_.layout(choice.operands[i]);
    }
    for (const Placements& placements : choice.results)
      decision_->results.push_back({mesh_.layout(placements), {}, {}});
    decision_->bound = bound_;
    return std::all_of(use_->changes.begin(), use_->changes.end(),
                       [&](const LocalChange& change) { return apply(change, choice); });
  }

  bool apply(const LocalChange& change, const Choice& choice) {
    switch (change.kind) {
      case LocalChange::Kind::result_sizes:
        return localize_sizes(change, choice);
      case LocalChange::Kind::factor_size:
        if (const auto part = part_of(change.factor, choice)) {
          decision_->replaced.emplace_back(call_.index(change.argument), part->size);
          return true;
        }
        return false;
      case LocalChange::Kind::mask_indices:
        return mask_indices(change, choice);
    }
    return false;
  }

  bool localize_sizes(const LocalChange& change, const Choice& choice) {
    const std::size_t index = call_.index(change.argument);
    const std::vector<std::int64_t> asked = call_.integers(change.argument);
    Shape global = bound_->result(0).shape;
    if (global.size() != asked.size()) return false;
    for (std::size_t dim = 0; dim < global.size(); ++dim) {
      if (global[dim] < 0) global[dim] = asked[dim];
    }
    decision_->replaced.emplace_back(
        index, local_shape(global, choice.results[0], mesh_.shape(), coordinate_in(mesh_)));
    return true;
  }

  const Factor* factor_named(const std::string& name) const {
    for (const Factor& factor : bound_->factors) {
      if (factor.name == name) return &factor;
    }
    return nullptr;
  }

  // This rank's part of a factor, if it is one run of indices.
  std::optional<Range> part_of(const std::string& name, const Choice& choice) const {
    const Factor* factor = factor_named(name);
    if (factor == nullptr || factor->sites.empty()) return std::nullopt;
    const Site& site = factor->sites[0];
    const auto held =
        held_ranges(factor->size, site.dim, choice.operands[static_cast<std::size_t>(site.tensor)],
                    mesh_.shape(), coordinate_in(mesh_));
    if (held.empty()) return Range{0, 0};
    return held.size() == 1 ? std::optional<Range>(held[0]) : std::nullopt;
  }

  bool mask_indices(const LocalChange& change, const Choice& choice) {
    const Factor* factor = factor_named(change.factor);
    if (factor == nullptr) return false;
    const Site& site = factor->sites.at(0);
    const Placements& placements = choice.operands[static_cast<std::size_t>(site.tensor)];
    const bool is_split = std::any_of(placements.begin(), placements.end(),
                                      [&](const Placement& p) { return p.is_shard(site.dim); });
    if (!is_split) return true;
    const auto part = part_of(change.factor, choice);
    if (!part) return false;
    const std::size_t table = operands_[order_[static_cast<std::size_t>(site.tensor)]].argument;
    decision_->masks.push_back({call_.index(change.argument), table, site.dim, part->begin, part->size});
    return true;
  }

  // Always right: every operand whole on every rank, and so is every result. What is written is brought back
  // to where it was.
  void replicate() {
    decision_->moves.assign(operands_.size(), nullptr);
    decision_->replaced.clear();
    decision_->masks.clear();
    decision_->results.clear();
    decision_->bound = nullptr;
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
  StackCall call_;
  std::unique_ptr<RuleUse> use_;
  std::vector<std::size_t> order_;  // the operand of each tensor of the rule
  std::shared_ptr<BoundRule> bound_;
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
      // One result of a rule that is a list stands for all elements.
      const std::size_t r = std::min(i, decision.results.size() - 1);
      plan.layout = decision.results[r].layout;
      plan.sizes = result_shape(*decision.bound, static_cast<int>(r), local.sizes().vec());
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
