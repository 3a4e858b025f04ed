// Whether a plain tensor may meet a distributed one; and the composite operators, inside which it may.
#include "dispatch/mixing.h"

#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include <set>
#include <string>

#include "autograd/gradient_guard.h"
#include "dispatch/attention_on_shapes.h"
#include "dispatch/feature_dropout.h"
#include "dispatch/stack_call.h"
#include "meshtorch/dtensor.h"
#include "meshtorch/implicit_replication.h"

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

// A tensor that a composite operator made of sizes or numbers is equal on all ranks.
at::Tensor as_distributed(const at::Tensor& t, const std::shared_ptr<MeshImpl>& mesh,
                          const c10::OperatorHandle& op) {
  if (!t.defined() || meta_of(t) != nullptr) return t;
  TORCH_CHECK_NOT_IMPLEMENTED(t.layout() == at::kStrided, "meshtorch: `", op.schema().name(),
                              "` of distributed tensors would be a ", t.layout(),
                              " tensor, and distributed tensors are strided\n  do: call it on full_tensor()");
  TORCH_CHECK_NOT_IMPLEMENTED(
      !t.requires_grad(), "meshtorch: `", op.schema().name(),
      "` copies distributed tensors into a plain one, through which no distributed "
      "gradient comes back\n  do: use cat, stack and constant_pad_nd instead, or detach() its arguments");
  return DTensor::from_local(t, DeviceMesh(mesh), mesh->replicated()->placements, {.shape = t.sizes().vec()});
}

// Goes on to what the operator does without meshtorch, remembering that it is under way.
void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const auto mesh = composite_depth == 0 ? mesh_of_all(op, *stack) : nullptr;
  {
    const Depth depth(composite_depth);
    const c10::impl::ExcludeDispatchKeyGuard once(kCompositeKey);
    op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
  }
  if (!mesh) return;
  const std::size_t count = op.schema().returns().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(count); value != stack->end(); ++value) {
    if (value->isTensor()) {
      *value = as_distributed(value->toTensor(), mesh, op);
    } else if (value->isTensorList()) {
      std::vector<at::Tensor> elements = value->toTensorVector();
      for (at::Tensor& element : elements) element = as_distributed(element, mesh, op);
      *value = std::move(elements);
    }
  }
}

// For the operators whose derivative is a plain zero in LibTorch's formulas.
void run_guarded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
  if (stack->back().isTensor() && stack->back().toTensor().requires_grad())
    guard_gradients(stack->back().toTensor());
}

void run_guarded_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys,
                           torch::jit::Stack* stack) {
  run_composite(op, keys, stack);
  if (stack->back().isTensor() && stack->back().toTensor().requires_grad())
    guard_gradients(stack->back().toTensor());
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
