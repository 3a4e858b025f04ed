// Whether a plain tensor may meet a distributed one; and the composite operators, inside which it may.
#include "dispatch/mixing.h"

#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <algorithm>
#include <set>
#include <string>

#include "dispatch/attention_on_shapes.h"
#include "dispatch/feature_dropout.h"
#include "dispatch/gradient_guard.h"
#include "dispatch/whole_call.h"
#include "meshtorch/implicit_replication.h"
#include "operator/stack_call.h"

namespace meshtorch {
namespace {

thread_local int composite_depth = 0;
thread_local int implicit_depth = 0;

class Depth {
 public:
  explicit Depth(int& depth) : depth_(depth) { ++depth_; }
  ~Depth() { --depth_; }
  Depth(const Depth&) = delete;
  Depth& operator=(const Depth&) = delete;

 private:
  int& depth_;
};

// The mesh of a call whose tensors are all distributed; null if one is plain, since then a plain result may
// be a part of it that differs between ranks.
std::shared_ptr<MeshImpl> mesh_of_all(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  std::shared_ptr<MeshImpl> mesh;
  const auto count = op.schema().arguments().size();
  for (const at::Tensor& t : tensors_in(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count))) {
    if (!t.defined()) continue;
    const DTensorMeta* meta = meta_of(t);
    if (meta == nullptr) return nullptr;
    mesh = meta->mesh;
  }
  return mesh;
}

// The tensors among the results of the operator, which lie on top of the stack.
std::vector<at::Tensor> results_of(const c10::OperatorHandle& op, const torch::jit::Stack& stack) {
  const std::size_t count = op.schema().returns().size();
  return tensors_in(c10::ArrayRef<c10::IValue>(stack).slice(stack.size() - count));
}

// Goes on to what the operator does without meshtorch, remembering that it is under way.
void decompose(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Depth depth(composite_depth);
  const c10::impl::ExcludeDispatchKeyGuard once(kCompositeKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
}

// Decomposes the operator. False if its parts look into memory, or copy distributed tensors into a plain one,
// through which no distributed gradient comes back; then what lies on the stack is of no use.
bool decomposes(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const bool can_be_repeated = !op.schema().is_mutable();
  try {
    decompose(op, keys, stack);
  } catch (const c10::Error& error) {
    if (can_be_repeated && needs_memory(error)) return false;
    throw;
  }
  return !can_be_repeated || std::ranges::none_of(results_of(op, *stack), [](const at::Tensor& t) {
    return t.requires_grad() && meta_of(t) == nullptr;
  });
}

// The outermost composite operator gives distributed results: by its parts, or on whole tensors.
void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto mesh = composite_depth == 0 ? mesh_of_all(op, *stack) : nullptr;
  if (!mesh) {
    decompose(op, keys, stack);
    return;
  }
  const std::size_t below = stack->size() - op.schema().arguments().size();
  const torch::jit::Stack arguments(stack->begin() + static_cast<std::ptrdiff_t>(below), stack->end());
  if (!decomposes(op, keys, stack)) {
    stack->resize(below);
    stack->insert(stack->end(), arguments.begin(), arguments.end());
    run_on_whole(op, *stack);
  }
  distribute_results(op, mesh, *stack);
}

// An out= variant of a composite operator.
void run_composite_out(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const OperatorInfo& info = operator_info(op);
  if (info.special != nullptr) {
    Handler(info, *stack).run();
  } else {
    run_composite(op, keys, stack);
  }
}

bool has_out(const c10::OperatorHandle& op) {
  return std::ranges::any_of(op.schema().arguments(), [](const c10::Argument& a) { return a.is_out(); });
}

void guard_result(const torch::jit::Stack& stack) {
  const c10::IValue& result = stack.back();
  if (result.isTensor() && result.toTensor().requires_grad()) guard_gradients(result.toTensor());
}

// For the operators whose derivative is a plain zero in LibTorch's formulas.
void run_guarded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
  guard_result(*stack);
}

void run_guarded_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  run_composite(op, keys, stack);
  guard_result(*stack);
}

// The composite ones among them are names of others.
bool is_guarded_composite(const std::string& name) {
  static const std::set<std::string> names{
      "greater_.Scalar",       "greater_.Tensor",    "greater_equal_.Scalar",
      "greater_equal_.Tensor", "less_.Scalar",       "less_.Tensor",
      "less_equal_.Scalar",    "less_equal_.Tensor", "not_equal_.Scalar",
      "not_equal_.Tensor",     "matrix_exp"};
  return names.contains(name);
}

constexpr const char* kGuarded[] = {"cat",
                                    "repeat",
                                    "sgn",
                                    "sgn_",
                                    "copysign.Tensor",
                                    "copysign_.Tensor",
                                    "nextafter",
                                    "nextafter_",
                                    "eq_.Scalar",
                                    "eq_.Tensor",
                                    "ne_.Scalar",
                                    "ne_.Tensor",
                                    "lt_.Scalar",
                                    "lt_.Tensor",
                                    "le_.Scalar",
                                    "le_.Tensor",
                                    "gt_.Scalar",
                                    "gt_.Tensor",
                                    "ge_.Scalar",
                                    "ge_.Tensor",
                                    "poisson",
                                    "normal.Tensor_float",
                                    "normal.float_Tensor",
                                    "normal.Tensor_Tensor",
                                    "bernoulli.Tensor",
                                    "bernoulli_.Tensor",
                                    "linalg_matrix_exp",
                                    "avg_pool2d_backward",
                                    "avg_pool3d_backward",
                                    "_adaptive_avg_pool2d_backward",
                                    "_adaptive_avg_pool3d_backward",
                                    "adaptive_max_pool2d_backward",
                                    "adaptive_max_pool3d_backward",
                                    "max_pool2d_with_indices_backward",
                                    "max_pool3d_with_indices_backward",
                                    "fractional_max_pool2d_backward",
                                    "fractional_max_pool3d_backward",
                                    "reflection_pad1d_backward",
                                    "reflection_pad2d_backward",
                                    "reflection_pad3d_backward",
                                    "replication_pad1d_backward",
                                    "replication_pad2d_backward",
                                    "replication_pad3d_backward"};

// The composite operators that LibTorch would decompose wrongly, or otherwise than on a real device.
void run_taken_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const bool is_done =
      is_attention(op) ? run_attention_on_shapes(op, *stack) : run_feature_dropout(op, *stack);
  if (!is_done) run_composite(op, keys, stack);
}

// Registers the kernel for every operator that LibTorch decomposes; the others pass by at no cost.
std::unique_ptr<torch::Library> register_composites() {
  auto library =
      std::make_unique<torch::Library>(torch::Library::IMPL, "aten", kCompositeKey, __FILE__, __LINE__);
  auto& dispatcher = c10::Dispatcher::singleton();
  for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
    if (!name.name.starts_with("aten::")) continue;
    const auto op = dispatcher.findSchema(name);
    if (!op || !op->hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd)) continue;
    std::string full = name.name.substr(6);
    if (!name.overload_name.empty()) full += "." + name.overload_name;
    library->impl(full.c_str(), is_feature_dropout(*op) || is_attention(*op)
                                    ? torch::CppFunction::makeFromBoxedFunction<&run_taken_composite>()
                                : is_guarded_composite(full)
                                    ? torch::CppFunction::makeFromBoxedFunction<&run_guarded_composite>()
                                : has_out(*op)
                                    ? torch::CppFunction::makeFromBoxedFunction<&run_composite_out>()
                                    : torch::CppFunction::makeFromBoxedFunction<&run_composite>());
  }
  for (const char* name : kGuarded) {
    library->impl(name, torch::CppFunction::makeFromBoxedFunction<&run_guarded>());
  }
  return library;
}

const std::unique_ptr<torch::Library> composites = register_composites();

}  // namespace

implicit_replication::implicit_replication() { ++implicit_depth; }
implicit_replication::~implicit_replication() { --implicit_depth; }

void check_mixing(const OperatorInfo& info, const Operand& operand) {
  const bool is_made_inside = composite_depth > 0 || torch::autograd::get_current_node() != nullptr;
  // x[[0, 2]]: the numbers stand in the program, which is the same on every rank.
  const bool is_index = info.arguments[operand.argument].has_optional_elements;
  if (is_made_inside || is_index || implicit_depth > 0) return;
  TORCH_CHECK(
      false, "meshtorch: `", info.op.schema().name(),
      "` got a plain tensor beside distributed ones\n  argument ", info.arguments[operand.argument].name,
      ": a plain tensor of shape ", operand.tensor.sizes(),
      "\n  do: make it distributed with distribute_tensor, or, if it is equal on all ranks, open a scope: "
      "implicit_replication scope;");
}

}  // namespace meshtorch

TORCH_LIBRARY_IMPL(_, DeferredInit, library) { library.fallback(torch::CppFunction::makeFallthrough()); }
