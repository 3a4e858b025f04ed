// Backward in two halves. The nodes that lead to inputs form the first half. Where an edge leaves them,
// towards parameters, the gradient that comes to the node is kept; then all edges between them are removed,
// and each such node is a start of the second half.
#include "pipeline/split_backward.h"

#include <torch/csrc/autograd/engine.h>
#include <torch/csrc/autograd/function_hook.h>
#include <torch/csrc/autograd/variable.h>

#include <memory>
#include <unordered_map>
#include <unordered_set>

namespace meshtorch::internal {
namespace {

using torch::autograd::Edge;
using torch::autograd::Node;
using NodePointer = decltype(Edge::function);  // its type depends on LibTorch's version

at::Tensor no_tensor() { return {}; }

// The nodes from which an input can be reached, those of the inputs included.
class InputNodes {
 public:
  InputNodes(const GraphEdges& starts, const GraphEdges& inputs) {
    for (const Edge& input : inputs) leads_to_input_[input.function.get()] = true;
    for (const Edge& start : starts) visit(start.function);
  }

  bool contains(const Node* node) const {
    const auto known = leads_to_input_.find(node);
    return known != leads_to_input_.end() && known->second;
  }
  // Without those of the inputs.
  const std::vector<NodePointer>& nodes() const { return nodes_; }

 private:
  struct Visit {
    NodePointer node;
    std::size_t next = 0;
    bool leads_to_input = false;
  };

  // Depth first without recursion: graphs are deep.
  void visit(const NodePointer& start) {
    if (leads_to_input_.contains(start.get())) return;
    std::vector<Visit> stack{{start}};
    leads_to_input_[start.get()] = false;
    while (!stack.empty()) {
      Visit& visit = stack.back();
      const GraphEdges& edges = std::as_const(*visit.node).next_edges();
      if (visit.next == edges.size()) {
        const Visit done = std::move(visit);
        stack.pop_back();
        leads_to_input_[done.node.get()] = done.leads_to_input;
        if (done.leads_to_input) nodes_.push_back(done.node);
        if (!stack.empty()) stack.back().leads_to_input |= done.leads_to_input;
        continue;
      }
      const NodePointer& next = edges[visit.next++].function;
      if (next == nullptr) continue;
      const auto [known, is_new] = leads_to_input_.try_emplace(next.get(), false);
      if (is_new) {
        stack.push_back({next});
      } else {
        visit.leads_to_input |= known->second;
      }
    }
  }

  std::unordered_map<const Node*, bool> leads_to_input_;
  std::vector<NodePointer> nodes_;
};

// Keeps the gradients that come to a node.
class KeepGradients : public torch::autograd::FunctionPreHook {
 public:
  explicit KeepGradients(std::shared_ptr<std::vector<at::Tensor>> kept) : kept_(std::move(kept)) {}
  std::vector<at::Tensor> operator()(const std::vector<at::Tensor>& gradients) override {
    *kept_ = gradients;
    return gradients;
  }

 private:
  std::shared_ptr<std::vector<at::Tensor>> kept_;
};

struct KeptNode {
  NodePointer node;
  std::shared_ptr<std::vector<at::Tensor>> gradients = std::make_shared<std::vector<at::Tensor>>();
};

std::vector<KeptNode> keep_gradients(const InputNodes& first_half) {
  std::vector<KeptNode> kept;
  for (const NodePointer& node : first_half.nodes()) {
    for (const Edge& edge : std::as_const(*node).next_edges()) {
      if (!edge.is_valid() || first_half.contains(edge.function.get())) continue;
      kept.push_back({node});
      node->add_pre_hook(std::make_unique<KeepGradients>(kept.back().gradients));
      break;
    }
  }
  return kept;
}

// Removes the edges between the nodes of the first half, and frees the values of those that are not kept: a
// node whose result another one keeps would hold them.
void cut(const InputNodes& first_half, const std::vector<KeptNode>& kept) {
  std::unordered_set<const Node*> is_kept;
  for (const KeptNode& keep : kept) is_kept.insert(keep.node.get());
  for (const NodePointer& node : first_half.nodes()) {
    for (Edge& edge : node->next_edges()) {
      if (edge.is_valid() && first_half.contains(edge.function.get())) edge = Edge();
    }
    if (!is_kept.contains(node.get())) node->release_variables();
  }
}

}  // namespace

void run_backward(const BackwardStart& start) {
  if (start.edges.empty()) return;
  torch::autograd::Engine::get_default_engine().execute(start.edges, start.gradients, /*keep_graph=*/false,
                                                        /*create_graph=*/false, /*accumulate_grad=*/true);
}

InputGradients run_input_backward(const BackwardStart& start, const std::vector<at::Tensor>& inputs) {
  GraphEdges input_edges;
  for (const at::Tensor& input : inputs) {
    if (input.requires_grad()) input_edges.push_back(torch::autograd::impl::gradient_edge(input));
  }
  if (input_edges.empty() || start.edges.empty()) return {std::vector<at::Tensor>(inputs.size()), start};
  const InputNodes first_half(start.edges, input_edges);
  const std::vector<KeptNode> kept = keep_gradients(first_half);
  const std::vector<at::Tensor> gradients = torch::autograd::Engine::get_default_engine().execute(
      start.edges, start.gradients, /*keep_graph=*/true, /*create_graph=*/false, /*accumulate_grad=*/false,
      input_edges);
  cut(first_half, kept);
  InputGradients result;
  std::size_t next = 0;
  for (const at::Tensor& input : inputs)
    result.gradients.push_back(input.requires_grad() ? gradients[next++] : no_tensor());
  for (const KeptNode& keep : kept) {
    // The hooks ran in the first half, and what they gave is kept.
    keep.node->pre_hooks().clear();
    keep.node->tensor_pre_hooks().clear();
    for (std::size_t i = 0; i < keep.gradients->size(); ++i) {
      const at::Tensor& gradient = (*keep.gradients)[i];
      if (!gradient.defined()) continue;
      result.parameters.edges.emplace_back(keep.node, static_cast<std::uint32_t>(i));
      result.parameters.gradients.push_back(gradient);
    }
  }
  for (std::size_t i = 0; i < start.edges.size(); ++i) {  // outputs that do not depend on an input
    if (first_half.contains(start.edges[i].function.get())) continue;
    result.parameters.edges.push_back(start.edges[i]);
    result.parameters.gradients.push_back(start.gradients[i]);
  }
  return result;
}

}  // namespace meshtorch::internal
