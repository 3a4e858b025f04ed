// Where meshtorch is attached to LibTorch: the one list of all kernels and fallbacks that it registers, in
// order.
#include "dispatch/register_kernels.h"

#include <torch/library.h>

#include <algorithm>

#include "backends/meta_collectives.h"
#include "dispatch/composite.h"
#include "dispatch/handler.h"
#include "dispatch/meta_device.h"
#include "dispatch/replayed_view.h"
#include "operator/corrections.h"
#include "operator/decomposition.h"
#include "runtime/key.h"
#include "world/rank_generator.h"

namespace meshtorch::internal {
namespace {

using c10::KernelFunction;

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Handler(operator_info(op), *stack).run();
}

// What is done above autograd: operators that LibTorch decomposes, views, and operators with a derivative of
// plain zeros. The others pass by at no cost.
KernelFunction composite_kernel(const c10::OperatorHandle& op) {
  const std::string name = rule_name(op.operator_name());
  const bool is_composite = op.hasKernelForDispatchKey(c10::DispatchKey::CompositeImplicitAutograd);
  if (!is_composite) {
    if (has_plain_zero_gradient(name))
      return gives_views(op.schema()) ? KernelFunction::makeFromBoxedFunction<&run_guarded_view>()
                                      : KernelFunction::makeFromBoxedFunction<&run_guarded>();
    return replayed_view_kernel(op).value_or(KernelFunction::makeFallthrough());
  }
  if (decompositions().find(name) != nullptr)
    return KernelFunction::makeFromBoxedFunction<&run_taken_composite>();
  if (has_plain_zero_gradient(name)) return KernelFunction::makeFromBoxedFunction<&run_guarded_composite>();
  return has_out(op) ? KernelFunction::makeFromBoxedFunction<&run_composite_out>()
                     : KernelFunction::makeFromBoxedFunction<&run_composite>();
}

// In force as long as the library is loaded.
class KernelRegistrations {
 public:
  KernelRegistrations() {
    auto& dispatcher = c10::Dispatcher::singleton();
    handles_.push_back(dispatcher.addRegistrationListener(watch_of_registrations()));
    // Below autograd: the one kernel that sees every operator on meshtorch's tensors, and what goes past it.
    handles_.push_back(
        dispatcher.registerFallback(kMeshKey, KernelFunction::makeFromBoxedFunction<&run>(), "meshtorch"));
    add_direct_kernels(direct_);
    // Above autograd: an operator of a user, or one that comes later, is looked at when it is called.
    for (const c10::OperatorName& name : dispatcher.getAllOpNames()) {
      const auto op = dispatcher.findSchema(name);
      if (!op || !name.name.starts_with("aten::") || op->hasKernelForDispatchKey(kCompositeKey)) continue;
      handles_.push_back(dispatcher.registerImpl(name, kCompositeKey, composite_kernel(*op), std::nullopt,
                                                 nullptr, "meshtorch"));
    }
    handles_.push_back(dispatcher.registerFallback(
        kCompositeKey, KernelFunction::makeFromBoxedFunction<&run_unknown>(), "meshtorch"));
    add_meta_kernels(meta_);
    add_meta_factories(handles_);
    // On threads that are ranks: plain random operators draw from the rank's generator.
    handles_.push_back(
        dispatcher.registerFallback(kThreadRankKey, KernelFunction::makeFallthrough(), "meshtorch"));
    add_random_kernels(random_);
    add_meta_collectives(collectives_);
  }

 private:
  std::vector<c10::RegistrationHandleRAII> handles_;
  torch::Library direct_{torch::Library::IMPL, "aten", kMeshKey, __FILE__, __LINE__};
  torch::Library meta_{torch::Library::IMPL, "aten", c10::DispatchKey::Meta, __FILE__, __LINE__};
  torch::Library random_{torch::Library::IMPL, "aten", kThreadRankKey, __FILE__, __LINE__};
  torch::Library collectives_{torch::Library::IMPL, "c10d", c10::DispatchKey::Meta, __FILE__, __LINE__};
};

const KernelRegistrations kernel_registrations;

}  // namespace
}  // namespace meshtorch::internal

// A program that links the static library asks for this name, so that the linker takes this file
// (CMakeLists.txt).
extern "C" const char meshtorch_is_attached;
const char meshtorch_is_attached = 1;
