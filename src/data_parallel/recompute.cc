// recompute: a function whose backward runs its forward again.
#include "meshtorch/recompute.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>
#include <ATen/autocast_mode.h>
#include <torch/csrc/autograd/autograd.h>

#include "runtime/differentiable.h"
#include "runtime/host_tensor.h"

namespace meshtorch {
using namespace internal;
namespace {

// What a second run must find as the first did: random numbers, plain and distributed, and autocast.
struct Surroundings {
  at::Generator generator = at::detail::getDefaultCPUGenerator();
  at::Tensor random = generator.get_state();
  bool is_autocast = at::autocast::is_autocast_enabled(at::kCPU);
  at::ScalarType autocast_type = at::autocast::get_autocast_dtype(at::kCPU);

  void enter() const {
    at::Generator(generator).set_state(random);
    at::autocast::set_autocast_enabled(at::kCPU, is_autocast);
    at::autocast::set_autocast_dtype(at::kCPU, autocast_type);
  }
};

class InSurroundings {
 public:
  explicit InSurroundings(const Surroundings& first) { first.enter(); }
  ~InSurroundings() { own_.enter(); }
  InSurroundings(const InSurroundings&) = delete;
  InSurroundings& operator=(const InSurroundings&) = delete;

 private:
  Surroundings own_;
};

std::vector<at::Tensor> fresh_leaves(const std::vector<at::Tensor>& inputs,
                                     const std::vector<std::int64_t>& versions) {
  std::vector<at::Tensor> leaves;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    const at::Tensor& input = inputs[i];
    if (!input.defined()) {
      leaves.emplace_back();
      continue;
    }
    TORCH_CHECK(input._version() == versions[i],
                "meshtorch: an input of recompute was changed in place before backward", "\n  input ", i,
                ", shape ", input.sizes(), "\n  do: change a copy, or do without recompute here");
    leaves.push_back(input.detach().requires_grad_(input.requires_grad()));
  }
  return leaves;
}

std::vector<at::Tensor> gradients_of(const TensorFunction& fn, const std::vector<at::Tensor>& leaves,
                                     const std::vector<at::Tensor>& gradients) {
  std::vector<at::Tensor> outputs;
  {
    const at::AutoGradMode with_graph(true);
    outputs = fn(leaves);
  }
  std::vector<at::Tensor> roots;
  std::vector<at::Tensor> of_roots;
  for (std::size_t i = 0; i < outputs.size(); ++i) {
    if (!gradients[i].defined() || !outputs[i].defined() || !outputs[i].requires_grad()) continue;
    roots.push_back(outputs[i]);
    of_roots.push_back(gradients[i]);
  }
  if (!roots.empty()) torch::autograd::backward(roots, of_roots);
  std::vector<at::Tensor> results;
  for (const at::Tensor& leaf : leaves) results.push_back(leaf.defined() ? leaf.grad() : at::Tensor());
  return results;
}

}  // namespace

std::vector<at::Tensor> recompute(const TensorFunction& fn, const std::vector<at::Tensor>& inputs) {
  if (!at::GradMode::is_enabled()) return fn(inputs);
  const Surroundings first;
  std::vector<std::int64_t> versions;
  for (const at::Tensor& input : inputs) versions.push_back(input.defined() ? input._version() : 0);
  // Something to differentiate by, also where only what fn uses beside its inputs needs gradients.
  std::vector<at::Tensor> with_anchor = inputs;
  with_anchor.push_back(at::empty({0}, on_host(at::kFloat)).requires_grad_());
  return differentiable(
      "Recompute", with_anchor, [&](const std::vector<at::Tensor>&) { return fn(inputs); },
      [fn, inputs, versions, first](const std::vector<at::Tensor>& gradients) {
        TORCH_CHECK_NOT_IMPLEMENTED(
            !at::GradMode::is_enabled(),
            "meshtorch: what recompute gives cannot be differentiated twice\n  do: call "
            "backward without create_graph, or the function itself");
        const InSurroundings as_in_forward(first);
        std::vector<at::Tensor> results = gradients_of(fn, fresh_leaves(inputs, versions), gradients);
        results.emplace_back();
        return results;
      },
      Holds::tensors);
}

}  // namespace meshtorch
