// Gradients of distributed tensors are distributed.
#include "dispatch/gradient_guard.h"

#include <ATen/ATen.h>
#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/function_hook.h>

#include "tensor/meta.h"

namespace meshtorch::internal {
namespace {

class ReplicatesPlain : public torch::autograd::FunctionPostHook {
 public:
  explicit ReplicatesPlain(std::shared_ptr<MeshImpl> mesh) : mesh_(std::move(mesh)) {}

  torch::autograd::variable_list operator()(const torch::autograd::variable_list& gradients,
                                            const torch::autograd::variable_list& /*of_results*/) override {
    torch::autograd::variable_list distributed;
    for (const at::Tensor& gradient : gradients) {
      if (!gradient.defined() || meta_of(gradient) != nullptr) {
        distributed.push_back(gradient);
        continue;
      }
      const at::Tensor plain = gradient.detach().contiguous().clone();  // zeros may come without memory
      distributed.push_back(wrap(plain, mesh_->replicated(), plain.sizes(), plain.strides()));
    }
    return distributed;
  }

 private:
  std::shared_ptr<MeshImpl> mesh_;
};

}  // namespace

void guard_gradients(const at::Tensor& result) {
  const DTensorMeta* meta = meta_of(result);
  const auto& node = result.grad_fn();
  if (meta != nullptr && node) node->add_post_hook(std::make_unique<ReplicatesPlain>(meta->mesh));
}

}  // namespace meshtorch::internal
