// Hooks of LibTorch's autograd.
#include "data_parallel/gradient_hook.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/graph_task.h>
#include <torch/csrc/autograd/variable.h>

#include "data_parallel/parameter_group.h"

namespace meshtorch::internal {
namespace {

class GradientHook : public torch::autograd::PostAccumulateGradHook {
 public:
  GradientHook(std::weak_ptr<ParameterGroup> group, std::size_t index,
               std::unique_ptr<PostAccumulateGradHook> earlier)
      : group_(std::move(group)), index_(index), earlier_(std::move(earlier)) {}

  void operator()(const torch::autograd::Variable& parameter) override {
    if (const auto group = group_.lock()) return group->on_gradient(index_);
    call_earlier(parameter);
  }
  void call_earlier(const torch::autograd::Variable& parameter) {
    if (earlier_ != nullptr) (*earlier_)(parameter);
  }

 private:
  std::weak_ptr<ParameterGroup> group_;
  std::size_t index_;
  std::unique_ptr<PostAccumulateGradHook> earlier_;
};

}  // namespace

void call_on_gradient(const at::Tensor& parameter, const std::weak_ptr<ParameterGroup>& group,
                      std::size_t index) {
  namespace impl = torch::autograd::impl;
  impl::materialize_autograd_meta(parameter);  // one that never needed a gradient has none
  if (dynamic_cast<GradientHook*>(impl::post_acc_grad_hooks(parameter).get()) != nullptr) return;
  auto earlier = std::move(impl::post_acc_grad_hooks(parameter));
  impl::set_post_acc_grad_hooks(parameter, std::make_unique<GradientHook>(group, index, std::move(earlier)));
}

void call_user_hooks(const at::Tensor& parameter) {
  auto* hook = dynamic_cast<GradientHook*>(torch::autograd::impl::post_acc_grad_hooks(parameter).get());
  if (hook != nullptr) hook->call_earlier(parameter);
}

bool is_running_backward() { return torch::autograd::get_current_graph_task_id() != -1; }

void at_end_of_backward(std::function<void()> call) {
  torch::autograd::Engine::get_default_engine().queue_callback(std::move(call));
}

}  // namespace meshtorch::internal
