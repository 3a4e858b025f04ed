// Collectives on tensors without data, for the fake backend: c10d has kernels for real devices only.
#include "backends/meta_collectives.h"

#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include "backends/backend_traits.h"

namespace meshtorch::internal {
namespace {

void check_is_fake(const torch::jit::Stack& stack, const c10::OperatorHandle& op) {
  for (const c10::IValue& value : stack) {
    if (!value.isCustomClass()) continue;
    if (value.type()->repr_str().find("ProcessGroup") == std::string::npos) continue;
    const std::string backend =
        value.toCustomClass<c10d::ProcessGroup>()->getBackend(c10::DeviceType::CPU)->getBackendName();
    TORCH_CHECK_NOT_IMPLEMENTED(!traits_of(backend).has_peers, "meshtorch: `", op.schema().name(),
                                "` got tensors on the meta device, which have no data to send\n  backend: ",
                                backend, "\n  do: use the backend \"fake\", or give the tensors data");
  }
}

// The CPU's kernel only hands the tensors to the backend.
void run_as_on_cpu(const c10::OperatorHandle& op, c10::DispatchKeySet, torch::jit::Stack* stack) {
  check_is_fake(*stack, op);
  op.redispatchBoxed(c10::DispatchKeySet(c10::DispatchKey::CPU), stack);
}

}  // namespace

void add_meta_collectives(torch::Library& meta_key) {
  for (const char* name : {"allreduce_", "allreduce_coalesced_", "allgather_", "_allgather_base_",
                           "allgather_into_tensor_coalesced_", "reduce_scatter_", "_reduce_scatter_base_",
                           "reduce_scatter_tensor_coalesced_", "alltoall_", "alltoall_base_", "broadcast_",
                           "reduce_", "gather_", "scatter_"}) {
    const auto op = c10::Dispatcher::singleton().findOp({std::string("c10d::") + name, ""});
    if (!op || op->hasKernelForDispatchKey(c10::DispatchKey::Meta)) continue;
    meta_key.impl(name, torch::CppFunction::makeFromBoxedFunction<&run_as_on_cpu>());
  }
}

}  // namespace meshtorch::internal
