// Transforms of functions, as torch.func.grad makes: what is called in a function that one of them runs.
#pragma once

#include <ATen/core/Tensor.h>
#include <c10/core/impl/LocalDispatchKeySet.h>

namespace meshtorch::internal {

// While it lives, what this thread computes is constant to the transforms that run: its tensors are ordinary
// ones, with memory.
struct OutsideTransforms {
  c10::impl::ExcludeDispatchKeyGuard guard{c10::DispatchKeySet(
      {c10::DispatchKey::FuncTorchDynamicLayerFrontMode, c10::DispatchKey::FuncTorchDynamicLayerBackMode})};
};

// Whether a transform made the tensor: it stands for others, and has no memory of its own.
inline bool is_transformed(const at::Tensor& tensor) {
  return tensor.key_set().has_any(
      c10::DispatchKeySet({c10::DispatchKey::FuncTorchGradWrapper, c10::DispatchKey::FuncTorchBatched}));
}

// Throws NotImplementedError that names `where`, such as "from_local".
inline void check_untransformed(const at::Tensor& tensor, const char* where) {
  TORCH_CHECK_NOT_IMPLEMENTED(
      !is_transformed(tensor),
      "meshtorch: a tensor that depends on the arguments of torch.func cannot be used here\n  in: ", where,
      ", given shape ", tensor.sizes(),
      "\n  do: make distributed tensors outside of the function and give them to it, or use autograd");
}

}  // namespace meshtorch::internal
