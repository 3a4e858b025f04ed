// Functions with a backward of our own, as autograd nodes.
#include "autograd/differentiable.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace meshtorch::internal {
namespace {

class FunctionNode : public torch::autograd::Node {
 public:
  FunctionNode(std::string name, TensorMap backward)
      : name_(std::move(name)), backward_(std::move(backward)) {}

  std::string name() const override { return name_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    TORCH_CHECK(backward_, "meshtorch: the graph of ", name_,
                " was freed by an earlier backward\n  do: pass retain_graph=true to it");
    return backward_(gradients);
  }

  void release_variables() override { backward_ = nullptr; }

 private:
  std::string name_;
  TensorMap backward_;
};

}  // namespace

std::vector<at::Tensor> differentiable(const char* name, const std::vector<at::Tensor>& inputs,
                                       const TensorMap& forward, const TensorMap& backward) {
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    outputs = forward(inputs);
  }
  if (!torch::autograd::compute_requires_grad(at::TensorList(inputs))) return outputs;
  const auto node = c10::make_intrusive<FunctionNode>(name, backward);
  node->set_next_edges(torch::autograd::collect_next_edges(inputs));
  for (at::Tensor& output : outputs) {
    if (output.defined()) {
      torch::autograd::set_history(output, node);
    } else {
      node->add_input_metadata(torch::autograd::Node::undefined_input());
    }
  }
  return outputs;
}

at::Tensor differentiable(const char* name, const at::Tensor& input,
                          const std::function<at::Tensor(const at::Tensor&)>& forward,
                          const std::function<at::Tensor(const at::Tensor&)>& backward) {
  const TensorMap forward_all = [&](const std::vector<at::Tensor>& in) {
    return std::vector<at::Tensor>{forward(in[0])};
  };
  const TensorMap backward_all = [backward](const std::vector<at::Tensor>& gradients) {
    return std::vector<at::Tensor>{gradients[0].defined() ? backward(gradients[0]) : at::Tensor()};
  };
  return differentiable(name, std::vector<at::Tensor>{input}, forward_all, backward_all)[0];
}

}  // namespace meshtorch::internal
