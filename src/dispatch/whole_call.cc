// Composite operators on whole tensors: made whole and split again by differentiable functions, since a
// composite operator has no derivative of its own.
#include "dispatch/whole_call.h"

#include <string_view>

#include "dispatch/fallback_policy.h"
#include "meshtorch/dtensor.h"
#include "operator/operator.h"
#include "operator/stack_arguments.h"
#include "runtime/differentiable.h"
#include "tensor/from_local.h"
#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

// Applies `change` to every tensor among the values, from the one at `begin` on.
template <typename Change>
void change_tensors(torch::jit::Stack& stack, std::size_t begin, const Change& change) {
  for (std::size_t i = begin; i < stack.size(); ++i) {
    c10::IValue& value = stack[i];
    if (value.isTensor() && value.toTensor().defined()) {
      value = change(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> elements = value.toTensorVector();
      for (at::Tensor& element : elements) {
        if (element.defined()) element = change(element);
      }
      value = std::move(elements);
    }
  }
}

// The whole tensor, plain. A rank outside the mesh stands in for it with one of the same shape, so that it
// makes results of the same shapes as the others do.
at::Tensor made_whole(const at::Tensor& tensor) {
  const DTensorMeta* meta = meta_of(tensor);
  if (meta == nullptr) return tensor;
  if (meta->mesh->coordinate()) return DTensor(tensor).full_tensor();
  return differentiable(
      "StandInBackward", tensor, [](const at::Tensor& x) { return whole_local(x).detach(); },
      [replicated = meta->mesh->replicated(), mesh = meta->mesh](const at::Tensor& gradient) {
        return wrap(gradient, replicated, gradient.sizes(), gradient.strides());
      });
}

}  // namespace

bool needs_memory(const std::exception& error) {
  if (dynamic_cast<const c10::NotImplementedError*>(&error) != nullptr) return true;
  // LibTorch was given these words for the error that it throws there.
  return std::string_view(error.what()).find(kHasNoMemory) != std::string_view::npos;
}

void run_on_whole(const c10::OperatorHandle& op, torch::jit::Stack& stack) {
  const std::size_t begin = stack.size() - op.schema().arguments().size();
  std::int64_t gathered = 0;
  for (const at::Tensor& t : tensors_in(c10::ArrayRef<c10::IValue>(stack).slice(begin))) {
    const DTensorMeta* meta = t.defined() ? meta_of(t) : nullptr;
    if (meta != nullptr && !meta->layout->is_replicated) gathered += static_cast<std::int64_t>(t.nbytes());
  }
  if (gathered > 0) note_replicated_operator(operator_info(op).name, gathered);
  change_tensors(stack, begin, made_whole);
  op.callBoxed(&stack);
}

void distribute_results(const c10::OperatorHandle& op, const std::shared_ptr<MeshImpl>& mesh,
                        torch::jit::Stack& stack) {
  const auto distributed = [&](const at::Tensor& t) -> at::Tensor {
    if (meta_of(t) != nullptr) return t;
    TORCH_CHECK_NOT_IMPLEMENTED(
        t.layout() == at::kStrided, "meshtorch: `", op.schema().name(),
        "` of distributed tensors would be a ", t.layout(),
        " tensor, and distributed tensors are strided\n  do: call it on full_tensor()");
    return made_of_local(t, DeviceMesh(mesh), mesh->replicated()->placements, {.shape = t.sizes().vec()},
                         ReplicaValues::taken);
  };
  change_tensors(stack, stack.size() - op.schema().returns().size(), distributed);
}

}  // namespace meshtorch::internal
