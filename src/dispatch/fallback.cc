// The one kernel that sees every operator on meshtorch's tensors.
#include <ATen/core/dispatch/Dispatcher.h>
#include <torch/library.h>

#include "comm/pending.h"

namespace meshtorch {
namespace {

void wait_for(const c10::IValue& value) {
  if (value.isTensor()) {
    wait_pending(value.toTensor());
  } else if (value.isTensorList()) {
    for (const at::Tensor& t : value.toTensorVector()) wait_pending(t);
  } else if (value.isList()) {
    for (const c10::IValue& item : value.toListRef()) wait_for(item);
  }
}

// A pending tensor loses its key when it has been waited for: the second try finds plain tensors.
void run(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  const std::size_t count = op.schema().arguments().size();
  for (auto value = stack->end() - static_cast<std::ptrdiff_t>(count); value != stack->end(); ++value) wait_for(*value);
  op.callBoxed(stack);
}

}  // namespace
}  // namespace meshtorch

TORCH_LIBRARY_IMPL(_, Fake, library) {
  library.fallback(torch::CppFunction::makeFromBoxedFunction<&meshtorch::run>());
}
