// Whether a plain tensor may meet a distributed one; and the composite operators, inside which it may.
#include "dispatch/mixing.h"

#include <torch/csrc/autograd/function.h>
#include <torch/library.h>

#include "autograd/gradient_guard.h"
#include "dispatch/attention_on_shapes.h"
#include "dispatch/feature_dropout.h"
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

// Goes on to what the operator does without meshtorch, remembering that it is under way.
void run_composite(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const Depth depth(composite_depth);
  const c10::impl::ExcludeDispatchKeyGuard once(kCompositeKey);
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
}

// For the operators whose derivative is a plain zero in LibTorch's formulas.
void run_guarded(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(op.schema().arguments().size());
       value != stack->end(); ++value) {
    if (value->isTensor() && value->toTensor().requires_grad() && meta_of(value->toTensor()) != nullptr) {
      *value = guard_gradient(value->toTensor());
    }
  }
  op.redispatchBoxed(keys & c10::DispatchKeySet(c10::DispatchKeySet::FULL_AFTER, kCompositeKey), stack);
}

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
                                    : torch::CppFunction::makeFromBoxedFunction<&run_composite>());
  }
  for (const char* name : {"sgn", "copysign.Tensor", "repeat"}) {
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
