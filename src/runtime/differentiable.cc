// Functions with a backward of our own, as autograd nodes.
#include "runtime/differentiable.h"

#include <torch/csrc/autograd/function.h>
#include <torch/csrc/autograd/functions/utils.h>

namespace meshtorch::internal {
namespace {

void check_graph(bool is_there, const char* name) {
  TORCH_CHECK(is_there, "meshtorch: the graph of ", name,
              " was freed by an earlier backward\n  do: pass retain_graph=true to it");
}

class FunctionNode : public torch::autograd::Node {
 public:
  FunctionNode(const char* name, TensorMap backward, Holds holds)
      : name_(name), backward_(std::move(backward)), holds_(holds) {}

  std::string name() const override { return name_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check_graph(static_cast<bool>(backward_), name_);
    return backward_(gradients);
  }

  void release_variables() override {
    if (holds_ == Holds::tensors) backward_ = nullptr;
  }

 private:
  const char* name_;
  TensorMap backward_;
  Holds holds_;
};

// The same for one input and one output, without lists on the way.
class MapNode : public torch::autograd::Node {
 public:
  MapNode(const char* name, TensorToTensor backward, Holds holds)
      : name_(name), backward_(std::move(backward)), holds_(holds) {}

  std::string name() const override { return name_; }

  torch::autograd::variable_list apply(torch::autograd::variable_list&& gradients) override {
    check_graph(static_cast<bool>(backward_), name_);
    return {gradients[0].defined() ? backward_(gradients[0]) : at::Tensor()};
  }

  void release_variables() override {
    if (holds_ == Holds::tensors) backward_ = nullptr;
  }

 private:
  const char* name_;
  TensorToTensor backward_;
  Holds holds_;
};

}  // namespace

std::vector<at::Tensor> differentiable(const char* name, const std::vector<at::Tensor>& inputs,
                                       const TensorMap& forward, const TensorMap& backward, Holds holds) {
  std::vector<at::Tensor> outputs;
  {
    const at::NoGradGuard no_grad;
    outputs = forward(inputs);
  }
  if (!torch::autograd::compute_requires_grad(at::TensorList(inputs))) return outputs;
  const auto node = c10::make_intrusive<FunctionNode>(name, backward, holds);
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

bool is_recorded(const at::Tensor& input) { return torch::autograd::compute_requires_grad(input); }

at::Tensor differentiable(const char* name, const at::Tensor& input, const TensorToTensor& forward,
                          const TensorToTensor& backward, Holds holds) {
  at::Tensor output;
  {
    const at::NoGradGuard no_grad;
    output = forward(input);
  }
  if (!is_recorded(input)) return output;
  const auto node = c10::make_intrusive<MapNode>(name, backward, holds);
  node->set_next_edges(torch::autograd::collect_next_edges(input));
  torch::autograd::set_history(output, node);
  return output;
}

}  // namespace meshtorch::internal
