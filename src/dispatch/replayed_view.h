// Views of distributed tensors, above autograd: an in-place change to one is differentiated by taking the
// view anew, since strides say nothing of a split tensor.
#pragma once

#include <ATen/core/dispatch/Dispatcher.h>
#include <c10/core/AutogradState.h>

namespace meshtorch::internal {

// While it lives, LibTorch records how to replay each view that this thread makes.
class ReplaysViews {
 public:
  ReplaysViews() : was_(c10::AutogradState::get_tls_state().get_view_replay_enabled()) { set(true); }
  ~ReplaysViews() { set(was_); }
  ReplaysViews(const ReplaysViews&) = delete;
  ReplaysViews& operator=(const ReplaysViews&) = delete;

 private:
  static void set(bool replays) { c10::AutogradState::get_tls_state().set_view_replay_enabled(replays); }
  const bool was_;
};

// LibTorch asks its thread whether views are replayed, when it makes one. The kernel tells it so for that
// call only: views of plain tensors stay as they are without meshtorch. Nothing for operators whose results
// are no views, or none that gradients go through.
std::optional<c10::KernelFunction> replayed_view_kernel(const c10::OperatorHandle& op);

// Says that a tensor gets another shape in place, by the call of `op` with `arguments`, whose first is the
// tensor: if it is a view, that is done too when it is replayed.
void reshape_when_replayed(const at::Tensor& view, const c10::OperatorHandle& op,
                           const torch::jit::Stack& arguments);

}  // namespace meshtorch::internal
