// One operator call on distributed tensors.
#include "dispatch/handler.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <set>
#include <string_view>

#include "backends/pending.h"
#include "dispatch/call_record_scope.h"
#include "dispatch/mesh_groups.h"
#include "dispatch/mixing.h"
#include "dispatch/random_whole.h"
#include "dispatch/replayed_view.h"
#include "dispatch/write_back.h"
#include "dispatch/write_results.h"
#include "local/kernel_check.h"
#include "local/kernel_operand.h"
#include "local/local_call.h"
#include "meshtorch/device_mesh.h"
#include "operator/call_key.h"
#include "operator/decomposition.h"
#include "operator/kept_layout.h"
#include "operator/known_number.h"
#include "operator/stack_arguments.h"
#include "prove/call_check.h"
#include "signature/collective_signature.h"
#include "tensor/execute.h"
#include "tensor/from_local.h"
#include "tensor/reduced.h"
#include "world/exit_reason.h"

namespace meshtorch::internal {
namespace {

bool has_all_split_dims(const Layout& layout, std::int64_t dims) {
  return std::ranges::all_of(layout.placements,
                             [&](const Placement& p) { return !p.is_shard() || p.dim() < dims; });
}

}  // namespace

Handler::Handler(const OperatorInfo& info, torch::jit::Stack& stack, LookedUp* looked_up)
    : info_(info), stack_(stack), base_(stack.size() - info.arguments.size()), looked_up_(looked_up) {}

void Handler::run() {
  const CallOrigin origin(info_.op.schema().name());
  try {
    dispatch();
  } catch (...) {
    note_failed_operator(origin.name(), std::current_exception());
    throw;
  }
}

void Handler::dispatch() {
  if (run_by_meshes(info_, stack_)) return;
  collect_operands();
  if ((other_mesh_ || writes_plain()) && run_on_numbers(info_, stack_)) return;
  check_meshes();
  if (mesh_ == nullptr) {
    info_.op.callBoxed(&stack_);  // there were pending tensors only, and they are plain now
    return;
  }
  switch (info_.handling.kind) {
    case Handling::Kind::rule:
      return writes_before_layout() ? adopt_result_layout() : run_by_rule();
    case Handling::Kind::decomposition:
      if (!info_.handling.decomposition->traits.takes_plain) check_plain_operands();
      return info_.handling.decomposition->function.callBoxed(info_.op, c10::DispatchKeySet(), &stack_);
    case Handling::Kind::composite:
      return info_.op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, stack_);
    case Handling::Kind::inplace_reshape:
      return change_shape();
    case Handling::Kind::via_functional:
      check_plain_operands();
      return write_results(info_, stack_);
    case Handling::Kind::replicated_random:
      seed_generator(info_, stack_);
      return run_by_rule();
    case Handling::Kind::rejected:
      return refuse();
  }
}

void Handler::refuse() const {
  const std::string_view words(info_.handling.refusal);
  const std::size_t advice = words.find("\n  do:");
  TORCH_CHECK_NOT_IMPLEMENTED(false, "meshtorch: `", info_.op.schema().name(), "`", words.substr(0, advice),
                              "\n  overload: ", info_.name, words.substr(advice));
}

void Handler::run_rule() {
  collect_operands();
  check_meshes();
  run_by_rule();
}

void Handler::run_by_rule() {
  check_plain_operands();
  const CallKey call_key = looked_up_ != nullptr ? std::move(looked_up_->key) : key();
  if (const auto known = looked_up_ != nullptr ? looked_up_->decision : decisions_of(*mesh_).find(call_key)) {
    torch::jit::Stack view_arguments;
    if (info_.is_view && !is_sure_to_share_memory(*known)) view_arguments = copy_of_arguments();
    run_locally(*known);
    wrap_results(*known, view_arguments);
    carry_back();
    return;
  }
  const torch::jit::Stack global_arguments = copy_of_arguments();
  check_call(info_, operands_, global_arguments);
  const auto decision = decide(info_, operands_, global_arguments, *mesh_);
  run_locally(*decision, /*is_first=*/true);
  complete(*decision, *mesh_, tensors_in(c10::ArrayRef<c10::IValue>(stack_).slice(base_)), info_.is_view);
  decisions_of(*mesh_).insert(call_key, decision);
  wrap_results(*decision, global_arguments);
  carry_back();
}

bool Handler::is_sure_to_share_memory(const Decision& decision) const {
  const DTensorMeta& base = *operands_[0].meta;
  return decision.moves[0] == nullptr && !base.write_back &&
         (!info_.is_reshape || base.local.is_contiguous());
}

torch::jit::Stack Handler::copy_of_arguments() const {
  return {stack_.begin() + static_cast<std::ptrdiff_t>(base_), stack_.end()};
}

void Handler::collect_operands() {
  visit_tensors(
      info_, c10::ArrayRef<c10::IValue>(stack_).slice(base_),
      [&](const at::Tensor& tensor, std::size_t index, int element) { collect(tensor, index, element); });
}

void Handler::collect(const at::Tensor& tensor, std::size_t argument_index, int element) {
  DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) {
    wait_pending(tensor);
  } else if (mesh_ == nullptr) {
    mesh_ = meta->layout->mesh;
  } else if (mesh_ != meta->layout->mesh && !other_mesh_) {
    other_mesh_ = operands_.size();
  }
  if (meta != nullptr) refresh(*meta, Reader::all_ranks);
  if (meta != nullptr && meta->assumed) assumed_ = assume_both(assumed_, meta->assumed);
  operands_.push_back({argument_index, element, tensor, meta});
  if (meta != nullptr && !meta->reduced.is_empty()) operands_.back().reduced = reduced_layout(*meta);
}

void Handler::check_meshes() const {
  if (!other_mesh_) return;
  const Operand& other = operands_[*other_mesh_];
  TORCH_CHECK_VALUE(false, "meshtorch: `", info_.op.schema().name(),
                    "` got tensors on different meshes\n  argument ", info_.arguments[other.argument].name,
                    ": ", DeviceMesh(other.meta->mesh).to_string(),
                    "\n  before it: ", DeviceMesh(mesh_->shared_from_this()).to_string(),
                    "\n  do: put both on one mesh, as distribute_tensor(x.full_tensor(), mesh, placements) "
                    "does");
}

// A plain tensor that passes is equal on all ranks; one that is written becomes distributed itself,
// replicated, in place.
void Handler::check_plain_operands() {
  for (Operand& operand : operands_) {
    if (operand.meta != nullptr) continue;
    const bool is_written = info_.arguments[operand.argument].is_written;
    const bool is_number = is_written ? operand.tensor.numel() == 1 : is_one_number(operand.tensor);
    if (!is_number) check_mixing(info_, operand);
    if (!is_written) continue;
    const at::Tensor local = operand.tensor.detach();
    const at::Tensor replicated = wrap(local, mesh_->replicated(), local.sizes(), local.strides());
    operand.tensor.unsafeGetTensorImpl()->shallow_copy_from(replicated.getIntrusivePtr());
    operand.meta = &distributed(operand.tensor, "an argument that is written");
  }
  // It may be read by the same operator.
  for (Operand& operand : operands_) {
    if (operand.meta == nullptr) operand.meta = meta_of(operand.tensor);
  }
}

bool Handler::writes_plain() const {
  return info_.writes && std::ranges::any_of(operands_, [&](const Operand& operand) {
           return operand.meta == nullptr && info_.arguments[operand.argument].is_written &&
                  operand.tensor.numel() > 1;
         });
}

// squeeze_ and its kin: the functional operator gives the new shape, and the tensor takes it over.
void Handler::change_shape() {
  TORCH_CHECK_NOT_IMPLEMENTED(info_.functional, "meshtorch: `", info_.op.schema().name(),
                              "` is not supported on a distributed tensor");
  const at::Tensor self = operands_[0].tensor;
  // Autograd replays views of their base, in the shape that the base has by then.
  const bool has_views = !self.is_view() && !self.unsafeGetTensorImpl()->version_counter().unique();
  TORCH_CHECK_NOT_IMPLEMENTED(!self.requires_grad() || !has_views, "meshtorch: `", info_.op.schema().name(),
                              "` of a tensor that requires gradients and has views, or shares its data",
                              "\n  shape: ", self.sizes(), "\n  do: use ", info_.functional->schema().name(),
                              ", which gives a tensor of the new shape");
  const torch::jit::Stack arguments = copy_of_arguments();
  info_.functional->callBoxed(&stack_);
  adopt(self, stack_.back().toTensor());
  reshape_when_replayed(self, *info_.functional, arguments);
  stack_.back() = self;
}

// Backward formulas make zeros and write to them: they need not stay whole where what is written is split.
bool Handler::writes_before_layout() const {
  const std::vector<int>& returned = info_.returned_argument;
  const bool is_in_place = info_.functional && returned.size() == 1 && returned[0] == 0;
  if (!is_in_place || !CompositeArguments::has_made(operands_[0].tensor)) return false;
  const Layout* lies = operands_[0].meta != nullptr ? operands_[0].meta->layout : mesh_->replicated();
  return operands_[0].tensor.numel() > 1 && std::ranges::any_of(operands_, [&](const Operand& operand) {
           return operand.meta != nullptr && operand.meta->layout != lies;
         });
}

// The functional operator says how its result lies, and the tensor takes it over.
void Handler::adopt_result_layout() {
  const at::Tensor self = operands_[0].tensor;
  torch::jit::Stack arguments = copy_of_arguments();
  info_.functional->callBoxed(&arguments);
  const at::Tensor result = arguments.back().toTensor();
  // What LibTorch would cast, or refuse.
  if (result.scalar_type() != self.scalar_type() || result.sizes() != self.sizes()) return run_by_rule();
  if (operands_[0].meta != nullptr) {
    adopt(self, result);
  } else {
    self.unsafeGetTensorImpl()->shallow_copy_from(result.getIntrusivePtr());
  }
  stack_.resize(base_);
  stack_.push_back(self);
}

CallKey Handler::key() const {
  CallKey key;
  key.push_back(reinterpret_cast<std::int64_t>(&info_));
  for (const Operand& operand : operands_)
    append_tensor(key, operand.tensor, operand.meta, operand.argument, operand.element);
  for (const Operand& operand : operands_) {
    if (operand.reduced != nullptr) key.push_back(reinterpret_cast<std::int64_t>(operand.reduced));
  }
  for (const std::size_t i : info_.numbers)
    key.push_back(static_cast<std::int64_t>(known_number(stack_[base_ + i])));
  for (const std::size_t i : info_.key_arguments) append_argument(key, stack_[base_ + i]);
  if (keeps_layouts()) {
    for (const Operand& operand : operands_) key.push_back(is_kept(operand) ? 1 : 0);
  }
  return key;
}

void Handler::run_locally(const Decision& decision, bool is_first) {
  const CallRecordScope recorded(info_, operands_, c10::ArrayRef<c10::IValue>(stack_).slice(base_), *mesh_);
  const LocalTensors locals = localize_arguments(decision);
  const std::function<at::Tensor(const at::Tensor&)> scale = scaling_in_place();
  std::vector<ScaledTerms> scaled;
  for (std::size_t i = 0; scale && i < operands_.size(); ++i) {
    if (operands_[i].argument == 0 && operands_[i].meta != nullptr && decision.moves[i] == nullptr)
      scaled.emplace_back(*operands_[i].meta);
  }
  try {
    if (is_first) check_kernel(info_, operands_, decision.changes, locals, copy_of_arguments());
    run_local_call(info_, decision.changes, stack_);
  } catch (...) {
    tell_failure(decision);
    throw;
  }
  restore_written(decision, locals);
  for (ScaledTerms& terms : scaled) terms.keep(scale);
}

// What the call does to each element of its first argument, if that is to multiply it in place, or divide it,
// by one number, and a reduced value is kept of it; empty otherwise.
std::function<at::Tensor(const at::Tensor&)> Handler::scaling_in_place() const {
  if (std::ranges::none_of(operands_, [](const Operand& operand) { return operand.reduced != nullptr; }))
    return {};
  static const std::set<std::string_view> multiply{"mul_.Tensor", "mul_.Scalar", "_foreach_mul_.Tensor",
                                                   "_foreach_mul_.Scalar"};
  static const std::set<std::string_view> divide{"div_.Tensor", "div_.Scalar", "_foreach_div_.Tensor",
                                                 "_foreach_div_.Scalar"};
  const bool multiplies = multiply.contains(info_.name);
  if (!multiplies && !divide.contains(info_.name)) return {};
  const c10::IValue& factor = stack_[base_ + 1];
  if (factor.isTensor() && factor.toTensor().numel() != 1) return {};
  at::Tensor number = factor.isTensor() ? factor.toTensor() : at::scalar_to_tensor(factor.toScalar());
  if (factor.isScalar()) number.unsafeGetTensorImpl()->set_wrapped_number(true);
  number = number.reshape({}).clone();
  return [=](const at::Tensor& value) {
    return multiplies ? value.mul(number).to(value.scalar_type()) : value.div(number).to(value.scalar_type());
  };
}

void Handler::tell_failure(const Decision& decision) const {
  bool is_alike = true;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Layout* layout = decision.moves[i];
    if (layout == nullptr && operands_[i].meta != nullptr) layout = operands_[i].meta->layout;
    is_alike = is_alike && (layout == nullptr || layout->is_replicated);
  }
  if (!is_alike && mesh_->coordinate()) tell_failed_call(mesh_->ranks_of_root(), std::current_exception());
}

Handler::LocalTensors Handler::localize_arguments(const Decision& decision) {
  // Before anything is sent, whatever it is: ranks that assume other shapes may have decided otherwise.
  const auto is_moved = [](const Layout* to) { return to != nullptr; };
  if (assumed_ && std::ranges::any_of(decision.moves, is_moved)) {
    compare_assumed(assumed_);
    assumed_ = nullptr;
  }
  LocalTensors locals;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    at::Tensor local = operand.meta != nullptr ? operand.meta->local : operand.tensor;
    if (const Layout* target = decision.moves[i]) {
      local = operand.meta != nullptr
                  ? operand_under(operand.tensor, *target)
                  : redistribute_local(local, local.sizes().vec(), *mesh_->replicated(), *target);
    }
    // What is shared with a result must stay where it is.
    locals.push_back(info_.is_view ? std::move(local) : as_kernel_operand(operand.tensor, std::move(local)));
  }
  replace_operands(info_, operands_, locals, &stack_[base_]);
  return locals;
}

// What was written elsewhere than where the operand lies is brought back.
void Handler::restore_written(const Decision& decision, const LocalTensors& locals) {
  if (!info_.writes) return;
  for (std::size_t i = 0; i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if (!info_.arguments[operand.argument].is_written || operand.meta == nullptr) continue;
    DTensorMeta& meta = *operand.meta;
    note_write(locals[i]);
    // What was moved is whole here, and an out= tensor may have got another shape, without the dims that were
    // split.
    const Layout* moved = decision.moves[i];
    const bool has_dims = moved == nullptr || has_all_split_dims(*meta.layout, locals[i].dim());
    const at::Tensor back = moved != nullptr && has_dims
                                ? redistribute_local(locals[i], locals[i].sizes().vec(), *moved, *meta.layout)
                                : locals[i];
    if (!has_dims) meta.layout = moved;
    if (!has_dims || back.sizes() != meta.local.sizes()) {
      meta.local = back.clone();
    } else if (!back.is_same(meta.local)) {
      meta.local.copy_(back);
      note_write(meta.local);
    }
  }
}

void Handler::carry_back() const {
  if (!info_.writes) return;
  for (const Operand& operand : operands_) {
    if (info_.arguments[operand.argument].is_written && operand.meta != nullptr && operand.meta->write_back)
      write_through(operand.tensor);
  }
}

void Handler::wrap_results(const Decision& decision, const torch::jit::Stack& arguments) {
  const std::size_t count = info_.returned_argument.size();
  std::size_t next = 0;
  OriginOfCall origin(info_);
  for (const Operand& operand : operands_) origin.add(operand.meta, operand.argument);
  for (std::size_t i = 0; info_.writes && i < operands_.size(); ++i) {
    const Operand& operand = operands_[i];
    if (operand.meta != nullptr && info_.arguments[operand.argument].is_written)
      origin.mark(*operand.meta, i);
  }
  ResultPlan measured;
  const auto plan_of_next = [&](const at::Tensor& local) -> const ResultPlan& {
    const std::size_t index = next++;
    if (index < decision.results.size() && !decision.results[index].is_open) return decision.results[index];
    return measured = measured_plan(decision, *mesh_, index, local);
  };
  const auto wrapped = [&](at::Tensor local) -> at::Tensor {
    const std::size_t index = next;
    const ResultPlan& plan = plan_of_next(local);
    if (!local.defined()) return local;
    at::Tensor result = info_.is_view ? wrap_view(std::move(local), plan, operands_[0].tensor,
                                                  decision.moves[0] != nullptr, info_.op, arguments, index)
                                      : wrap(std::move(local), plan.layout, plan.sizes, plan.strides);
    DTensorMeta& meta = distributed(result, "a result");
    if (assumed_ && !plan.layout->is_replicated) meta.assumed = assumed_;
    origin.mark(meta, index);
    return result;
  };
  for (std::size_t r = 0; r < count; ++r) {
    c10::IValue& value = stack_[stack_.size() - count + r];
    if (const int written = info_.returned_argument[r]; written >= 0) {
      const at::Tensor& target = written_operand(written);
      const ResultPlan& plan = plan_of_next(value.toTensor());
      // An out= tensor takes the shape of the result.
      if (target.sizes() != c10::IntArrayRef(plan.sizes)) {
        target.unsafeGetTensorImpl()->set_sizes_and_strides(plan.sizes, plan.strides);
        distributed(target, "an out= tensor").write_back = nullptr;  // a view of that shape is none any more
      }
      value = target;
    } else if (value.isTensor()) {
      value = wrapped(std::move(value).toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> elements = value.toTensorVector();
      for (at::Tensor& element : elements) element = wrapped(std::move(element));
      value = std::move(elements);
    }
  }
}

const at::Tensor& Handler::written_operand(int argument_index) const {
  for (const Operand& operand : operands_) {
    if (operand.argument == static_cast<std::size_t>(argument_index)) return operand.tensor;
  }
  TORCH_INTERNAL_ASSERT(false, "`", info_.name, "` returns an argument that is not a tensor");
}

void run_rule(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Handler(operator_info(op), *stack).run_rule();
}

}  // namespace meshtorch::internal
