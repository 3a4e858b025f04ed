// The one kernel that sees every operator on meshtorch's tensors.
#include <torch/library.h>

#include "dispatch/handler.h"

namespace {

void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  meshtorch::Handler(meshtorch::operator_info(op), *stack).run();
}

}  // namespace

TORCH_LIBRARY_IMPL(_, Fake, library) { library.fallback(torch::CppFunction::makeFromBoxedFunction<&run>()); }
