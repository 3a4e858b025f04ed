// Views of distributed tensors, above autograd.
#include "dispatch/replayed_view.h"

#include <ATen/core/Tensor.h>
#include <ATen/ops/expand_ops.h>
#include <ATen/ops/permute_ops.h>
#include <ATen/ops/select_ops.h>
#include <ATen/ops/slice_ops.h>
#include <ATen/ops/t_ops.h>
#include <ATen/ops/transpose_ops.h>
#include <ATen/ops/unsqueeze_ops.h>
#include <ATen/ops/view_ops.h>
#include <torch/csrc/autograd/variable.h>

#include "dispatch/composite.h"
#include "operator/operator.h"

namespace meshtorch::internal {
namespace {

void run_view(const c10::OperatorHandle& op, c10::DispatchKeySet keys, torch::jit::Stack* stack) {
  const ReplaysViews replays;
  op.redispatchBoxed(below_composite(keys), stack);
}

// The views that programs take most, without the boxing of their arguments.
template <typename Op, typename Schema = typename Op::schema>
struct View;

template <typename Op, typename... Arguments>
struct View<Op, at::Tensor(Arguments...)> {
  static at::Tensor call(c10::DispatchKeySet keys, Arguments... arguments) {
    const ReplaysViews replays;
    return Op::redispatch(below_composite(keys), arguments...);
  }
};

// A view, and the operator that gave it another shape in place.
class ReshapedView final : public torch::autograd::ViewFunc {
 public:
  ReshapedView(std::unique_ptr<ViewFunc> view, const c10::OperatorHandle& op, torch::jit::Stack arguments)
      : view_(std::move(view)), op_(op), arguments_(std::move(arguments)) {
    arguments_[0] = c10::IValue();  // the view itself, which would keep itself alive
  }

  at::Tensor operator()(const at::Tensor& base) const override {
    torch::jit::Stack stack = arguments_;
    stack[0] = (*view_)(base);
    op_.callBoxed(&stack);
    return stack.back().toTensor();
  }

  // What it holds are numbers that no tracer looks for.
  std::unique_ptr<ViewFunc> clone_and_set(std::optional<std::vector<c10::SymInt>> /*symints*/,
                                          std::optional<std::vector<at::Tensor>> /*tensors*/) const override {
    return std::make_unique<ReshapedView>(view_->clone_and_set(), op_, arguments_);
  }

 private:
  std::unique_ptr<ViewFunc> view_;
  c10::OperatorHandle op_;
  torch::jit::Stack arguments_;
};

template <typename... Ops>
std::optional<c10::KernelFunction> kernel_among(const c10::OperatorName& op) {
  std::optional<c10::KernelFunction> kernel;
  const auto take = [&]<typename Op>() {
    if (op.name == Op::name && op.overload_name == Op::overload_name)
      kernel = c10::KernelFunction::makeFromUnboxedFunction(TORCH_FN(View<Op>::call));
  };
  (take.template operator()<Ops>(), ...);
  return kernel;
}

}  // namespace

std::optional<c10::KernelFunction> replayed_view_kernel(const c10::OperatorHandle& op) {
  const c10::OperatorName& name = op.operator_name();
  if (!gives_views(op.schema()) || name.name == "aten::detach") return std::nullopt;
  namespace ops = at::_ops;
  if (auto kernel = kernel_among<ops::view, ops::t, ops::transpose_int, ops::permute, ops::unsqueeze,
                                 ops::expand, ops::slice_Tensor, ops::select_int>(name))
    return kernel;
  return c10::KernelFunction::makeFromBoxedFunction<&run_view>();
}

void reshape_when_replayed(const at::Tensor& view, const c10::OperatorHandle& op,
                           const torch::jit::Stack& arguments) {
  const auto* meta = torch::autograd::impl::get_view_autograd_meta(view);
  if (meta == nullptr || !meta->has_bw_view() || !meta->get_backward_view().has_view_fn()) return;
  // LibTorch offers no other way to change what it knows of a view.
  auto& info = const_cast<torch::autograd::ViewInfo&>(meta->get_backward_view());
  info.view_fn_ = std::make_unique<ReshapedView>(std::move(info.view_fn_), op, arguments);
  info.rev_view_fn_ = [](const at::Tensor&) -> at::Tensor {
    TORCH_CHECK_NOT_IMPLEMENTED(false, "meshtorch: a view that got another shape in place cannot be undone");
  };
}

}  // namespace meshtorch::internal
