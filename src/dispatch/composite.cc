// Composite operators, above autograd.
#include "dispatch/composite.h"

#include <ATen/core/grad_mode.h>

#include <algorithm>
#include <utility>

#include "dispatch/gradient_guard.h"
#include "dispatch/handler.h"
#include "dispatch/mixing.h"
#include "dispatch/replayed_view.h"
#include "dispatch/whole_call.h"
#include "operator/corrections.h"
#include "operator/decomposition.h"
#include "operator/stack_arguments.h"
#include "runtime/hidden_from_modes.h"

namespace meshtorch::internal {
namespace {

// The values of the operator's arguments, which lie on top of the stack.
c10::ArrayRef<c10::IValue> arguments_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  return c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - op.schema().arguments().size());
}

// The mesh of a call; null if none of its tensors is distributed.
std::shared_ptr<MeshImpl> mesh_of_any(const std::vector<at::Tensor>& tensors) {
  for (const at::Tensor& t : tensors) {
    if (!t.defined()) continue;
    if (const DTensorMeta* meta = meta_of(t)) return meta->mesh;
  }
  return nullptr;
}

bool are_all_distributed(const std::vector<at::Tensor>& tensors) {
  return std::ranges::all_of(tensors,
                             [](const at::Tensor& t) { return !t.defined() || meta_of(t) != nullptr; });
}

// Numbers that are equal on all ranks, since a step says them all.
bool counts_in_steps(const at::Tensor& t) {
  if (t.dim() != 1 || !at::isIntegralType(t.scalar_type(), /*includeBool=*/false)) return false;
  if (t.numel() < 2) return true;
  const at::Tensor step = t[1];
  return at::equal(t, at::arange(t.numel(), t.options()).mul_(step));
}

// A plain tensor that a user passes is refused here: inside, nothing tells it from one that the operator
// made.
void check_plain_arguments(const OperatorInfo& info, c10::ArrayRef<c10::IValue> arguments) {
  const HiddenFromModes hidden;
  visit_tensors(info, arguments, [&](const at::Tensor& t, std::size_t argument, int element) {
    if (meta_of(t) != nullptr || is_one_number(t)) return;
    const std::string& name = info.arguments[argument].name;
    if (reads_form_only(info.name, name)) return;
    if (is_zero_by_modules(info.name, name) && !t.any().item<bool>()) return;
    if (is_counted_by_functions(info.name, name) && counts_in_steps(t)) return;
    check_mixing(info, {argument, element, t, nullptr});
  });
}

// In inference mode nothing of autograd is left to decompose the operator. The dispatcher passes by the keys
// that an operator falls through when it is called, but not when a decomposition sends it on.
bool is_past_autograd(const c10::OperatorHandle& op, c10::DispatchKeySet below) {
  const Handling& handling = operator_info(op).handling;
  return handling.kind == Handling::Kind::composite && handling.decomposition != nullptr &&
         below.highestFunctionalityKey() <= c10::DispatchKey::ADInplaceOrView;
}

// Goes on to what the operator does without meshtorch, remembering that it is under way.
void decompose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const InsideComposite inside;
  const c10::DispatchKeySet below = below_composite(keys);
  if (is_past_autograd(op, below))
    return op.callBoxedForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd, *stack);
  op.redispatchBoxed(below, stack);
}

// Decomposes the operator. False if its parts look into memory, or copy distributed tensors into a plain one,
// through which no distributed gradient comes back; then what lies on the stack is of no use.
bool decomposes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack,
                bool is_all_distributed) {
  const bool can_be_repeated = !op.schema().is_mutable();
  try {
    decompose(op, keys, stack);
  } catch (const c10::Error& error) {
    if (can_be_repeated && needs_memory(error)) return false;
    throw;
  }
  if (!can_be_repeated || !is_all_distributed) return true;
  const auto results = c10::ArrayRef<c10::IValue>(*stack).slice(stack->size() - op.schema().returns().size());
  return std::ranges::none_of(tensors_in(results),
                              [](const at::Tensor& t) { return t.requires_grad() && meta_of(t) == nullptr; });
}

// The derivative that a user wrote for an operator would run on distributed tensors, of which it knows
// nothing: it may write into plain ones, or hold a lock while ranks wait for each other.
bool needs_own_derivative(const c10::OperatorHandle& op, const std::vector<at::Tensor>& tensors) {
  if (!at::GradMode::is_enabled() || op.schema().is_mutable()) return false;
  const bool has_one = op.hasKernelForDispatchKey(c10::DispatchKey::Autograd) ||
                       op.hasKernelForDispatchKey(c10::DispatchKey::AutogradCPU);
  const OperatorInfo& info = operator_info(op);
  if (!has_one || info.rule != nullptr || info.handling.kind != Handling::Kind::rule) return false;
  return std::ranges::any_of(tensors, [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
}

// The keys that the dispatcher found for the call whose decomposition is running: without those at which the
// operator has nothing to do, which a redispatch would not pass by.
thread_local c10::DispatchKeySet keys_of_taken_call;

class FusedCompositeScope {
 public:
  explicit FusedCompositeScope(c10::DispatchKeySet keys) : before_(std::exchange(keys_of_taken_call, keys)) {}
  ~FusedCompositeScope() { keys_of_taken_call = before_; }
  FusedCompositeScope(const FusedCompositeScope&) = delete;
  FusedCompositeScope& operator=(const FusedCompositeScope&) = delete;

 private:
  c10::DispatchKeySet before_;
};

void guard_result(const torch::jit::Stack& stack) {
  const c10::IValue& result = stack.back();
  if (result.isTensor() && result.toTensor().requires_grad()) guard_gradients(result.toTensor());
}

}  // namespace

void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (InsideComposite::is_any()) return decompose(op, keys, stack);
  const std::vector<at::Tensor> tensors = tensors_in(arguments_of(op, *stack));
  const auto mesh = mesh_of_any(tensors);
  if (!mesh) return decompose(op, keys, stack);
  const bool is_all_distributed = are_all_distributed(tensors);
  if (!is_all_distributed) check_plain_arguments(operator_info(op), arguments_of(op, *stack));
  const torch::jit::Stack arguments = arguments_of(op, *stack).vec();
  const std::size_t below = stack->size() - arguments.size();
  // That an operator cannot be decomposed is found out once, by each rank for itself: what was sent until
  // then, all ranks have sent.
  const bool has_gradient =
      std::ranges::any_of(tensors, [](const at::Tensor& t) { return t.defined() && t.requires_grad(); });
  WholeCalls& whole = decisions_of(*mesh).whole_calls();
  const CompositeArguments given(tensors);
  const bool is_whole = whole.contains(op, has_gradient) || !decomposes(op, keys, stack, is_all_distributed);
  if (is_whole) {
    whole.insert(op, has_gradient);
    stack->resize(below);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    run_on_whole(op, *stack);
  }
  // Beside a plain tensor, a plain result may be a part of it that differs between ranks.
  if (is_whole || is_all_distributed) distribute_results(op, mesh, *stack);
}

void run_composite_out(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  if (info.handling.kind == Handling::Kind::composite) return run_composite(op, keys, stack);
  Handler(info, *stack).run();
}

void run_taken_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const FusedCompositeScope taken(keys);
  operator_info(op).handling.decomposition->function.callBoxed(op, keys, stack);
}

void run_as_composite(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  run_composite(op, keys_of_taken_call, stack);
}

void run_guarded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(below_composite(keys), stack);
  guard_result(*stack);
}

void run_guarded_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const ReplaysViews replays;
  run_guarded(op, keys, stack);
}

void run_guarded_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  run_composite(op, keys, stack);
  guard_result(*stack);
}

bool has_out(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& a) { return a.is_out(); });
}

void run_unknown(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  if (!op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) {
    const std::vector<at::Tensor> tensors = tensors_in(arguments_of(op, *stack));
    const auto mesh = mesh_of_any(tensors);
    if (mesh && needs_own_derivative(op, tensors)) {
      if (!are_all_distributed(tensors)) check_plain_arguments(operator_info(op), arguments_of(op, *stack));
      run_on_whole(op, *stack);
      return distribute_results(op, mesh, *stack);
    }
    op.redispatchBoxed(below_composite(keys), stack);
  } else if (has_out(op)) {
    run_composite_out(op, keys, stack);
  } else {
    run_composite(op, keys, stack);
  }
}

}  // namespace meshtorch::internal
