// Differentiable collectives: each backward is the adjoint collective, itself differentiable.
#include <ATen/ATen.h>
#include <ATen/WrapDimUtils.h>
#include <torch/csrc/autograd/saved_variable.h>

#include <algorithm>

#include "core/shard.h"
#include "meshtorch/collectives.h"
#include "runtime/differentiable.h"

namespace meshtorch {
using namespace internal;
namespace {

// The form of a tensor: backward holds no data where it needs none.
struct TensorForm {
  std::vector<std::int64_t> sizes;
  at::TensorOptions options;
};

std::vector<TensorForm> forms_of(const Tensors& tensors) {
  std::vector<TensorForm> forms;
  for (const at::Tensor& t : tensors) forms.push_back({t.sizes().vec(), t.options().requires_grad(false)});
  return forms;
}

// The gradient of a missing result is zero; all ranks must still take part in the backward collective.
Tensors filled(const Tensors& gradients, const std::vector<TensorForm>& like) {
  Tensors full = gradients;
  for (std::size_t i = 0; i < full.size(); ++i) {
    if (!full[i].defined()) full[i] = at::zeros(like[i].sizes, like[i].options);
  }
  return full;
}

// Called by backward: forward is right without a derivative too.
void check_differentiable(ReduceOp op, const char* name) {
  TORCH_CHECK_NOT_IMPLEMENTED(op == ReduceOp::sum || op == ReduceOp::avg, "meshtorch: ", name,
                              " has no derivative for reduction ", to_string(op), "\n  do: use sum or avg");
}

// The adjoint of broadcast: the sum of all ranks' tensors on the source, zeros elsewhere.
at::Tensor sum_at_source_autograd(const at::Tensor& self, int source, const Group& group) {
  return differentiable(
      "SumAtSourceBackward", self,
      [=](const at::Tensor& x) {
        const at::Tensor sum = all_reduce(x, ReduceOp::sum, group);
        return group.rank() == source ? sum : at::zeros_like(x, at::MemoryFormat::Contiguous);
      },
      [=](const at::Tensor& g) { return broadcast_autograd(g, source, group); });
}

// The product of all ranks' tensors but this one's, for the derivative of a product that may hold zeros.
at::Tensor product_of_others(const at::Tensor& x, const Group& group) {
  const at::Tensor rows = all_gather_tensor_autograd(x.unsqueeze(0), 0, group);
  std::vector<at::Tensor> others;
  for (int r = 0; r < group.size(); ++r) {
    if (r != group.rank()) others.push_back(rows[r]);
  }
  return others.empty() ? at::ones_like(x) : at::stack(others).prod(0);
}

}  // namespace

at::Tensor all_reduce_autograd(const at::Tensor& self, Reduction op, const Group& group) {
  const auto forward = [=](const at::Tensor& x) { return all_reduce(x, op, group); };
  // Finds out if the input was changed in place before backward needs it.
  const auto saved_input = [&] {
    return std::make_shared<torch::autograd::SavedVariable>(self, /*is_output=*/false);
  };
  switch (op.op) {
    case ReduceOp::sum:
    case ReduceOp::avg:
      return differentiable("AllReduceBackward", self, forward,
                            [=](const at::Tensor& g) { return all_reduce_autograd(g, op, group); });
    case ReduceOp::product:
      return differentiable(
          "AllReduceProductBackward", self, forward,
          [=, saved = saved_input()](const at::Tensor& g) {
            return all_reduce_autograd(g, ReduceOp::sum, group) * product_of_others(saved->unpack(), group);
          },
          Holds::tensors);
    case ReduceOp::min:
    case ReduceOp::max:
      return differentiable(
          "AllReduceExtremumBackward", self, forward,
          [=, saved = saved_input()](const at::Tensor& g) {
            // Ranks that tie share the gradient.
            const at::Tensor x = saved->unpack().detach();
            const at::Tensor holds = x.eq(all_reduce(x, op, group)).to(g.scalar_type());
            return all_reduce_autograd(g, ReduceOp::sum, group) *
                   (holds / all_reduce(holds, ReduceOp::sum, group));
          },
          Holds::tensors);
    default:
      return differentiable("AllReduceBackward", self, forward, [=](const at::Tensor&) {
        check_differentiable(op.op, "all_reduce");
        return at::Tensor();
      });
  }
}

Tensors all_reduce_coalesced_autograd(const Tensors& self, Reduction op, const Group& group) {
  return differentiable(
      "AllReduceCoalescedBackward", self,
      [=](const Tensors& x) { return all_reduce_coalesced(x, op, group); },
      [=, like = forms_of(self)](const Tensors& g) {
        check_differentiable(op.op, "all_reduce_coalesced");
        return all_reduce_coalesced_autograd(filled(g, like), op, group);
      });
}

at::Tensor all_gather_tensor_autograd(const at::Tensor& self, std::int64_t dim, const Group& group,
                                      const Splits& sizes) {
  const bool is_scalar = self.dim() == 0;
  // Uneven sizes are put together in another way than reduce_scatter_tensor takes them apart unless they are
  // torch::chunk's.
  Splits each =
      sizes.empty() ? Splits(static_cast<std::size_t>(group.size()), is_scalar ? 1 : self.size(dim)) : sizes;
  return differentiable(
      "AllGatherBackward", self, [=](const at::Tensor& x) { return all_gather_tensor(x, dim, group, sizes); },
      [=](const at::Tensor& g) {
        const std::int64_t largest = *std::max_element(each.begin(), each.end());
        std::vector<at::Tensor> parts;
        std::int64_t begin = 0;
        for (const std::int64_t size : each) {
          at::Tensor part = g.narrow(dim, begin, size);
          if (size < largest) {
            std::vector<std::int64_t> missing = part.sizes().vec();
            missing[static_cast<std::size_t>(dim < 0 ? dim + g.dim() : dim)] = largest - size;
            part = at::cat({part, at::zeros(missing, g.options())}, dim);
          }
          parts.push_back(std::move(part));
          begin += size;
        }
        const at::Tensor mine =
            reduce_scatter_tensor_autograd(at::cat(parts, dim), ReduceOp::sum, dim, group);
        const at::Tensor kept = mine.narrow(dim, 0, each[static_cast<std::size_t>(group.rank())]);
        return is_scalar ? kept.reshape({}) : kept;
      });
}

Tensors all_gather_into_tensor_coalesced_autograd(const Tensors& self, const Group& group) {
  return differentiable(
      "AllGatherCoalescedBackward", self,
      [=](const Tensors& x) { return all_gather_into_tensor_coalesced(x, group); },
      [=, like = forms_of(self)](const Tensors& g) {
        Tensors full = g;
        for (std::size_t i = 0; i < g.size(); ++i) {
          std::vector<std::int64_t> sizes =
              like[i].sizes.empty() ? std::vector<std::int64_t>{1} : like[i].sizes;
          sizes[0] *= group.size();
          if (!g[i].defined()) full[i] = at::zeros(sizes, like[i].options);
        }
        Tensors mine =
            reduce_scatter_tensor_coalesced_autograd(full, ReduceOp::sum, Splits(g.size(), 0), group);
        for (std::size_t i = 0; i < g.size(); ++i) mine[i] = mine[i].reshape(like[i].sizes);
        return mine;
      });
}

at::Tensor reduce_scatter_tensor_autograd(const at::Tensor& self, Reduction op, std::int64_t dim,
                                          const Group& group) {
  const bool is_scalar = self.dim() == 0;
  const std::int64_t size = is_scalar ? 1 : self.size(dim);
  return differentiable(
      "ReduceScatterBackward", self,
      [=](const at::Tensor& x) { return reduce_scatter_tensor(x, op, dim, group); },
      [=](const at::Tensor& g) {
        check_differentiable(op.op, "reduce_scatter_tensor");
        Splits sizes;
        for (int r = 0; r < group.size(); ++r) sizes.push_back(chunk(size, group.size(), r).size);
        at::Tensor whole = all_gather_tensor_autograd(g, dim, group, sizes);
        if (is_scalar) whole = whole.reshape({});
        return op.op == ReduceOp::avg ? whole / group.size() : whole;
      });
}

Tensors reduce_scatter_tensor_coalesced_autograd(const Tensors& self, Reduction op, const Splits& dims,
                                                 const Group& group) {
  return differentiable(
      "ReduceScatterCoalescedBackward", self,
      [=](const Tensors& x) { return reduce_scatter_tensor_coalesced(x, op, dims, group); },
      [=, like = forms_of(self)](const Tensors& g) {
        check_differentiable(op.op, "reduce_scatter_tensor_coalesced");
        Tensors gradients;
        for (std::size_t i = 0; i < g.size(); ++i) {
          std::vector<std::int64_t> shape =
              like[i].sizes.empty() ? std::vector<std::int64_t>{1} : like[i].sizes;
          std::int64_t& split =
              shape[static_cast<std::size_t>(c10::maybe_wrap_dim(dims[i], std::ssize(shape)))];
          Splits sizes;
          for (int r = 0; r < group.size(); ++r) sizes.push_back(chunk(split, group.size(), r).size);
          split = sizes[static_cast<std::size_t>(group.rank())];
          const at::Tensor part = g[i].defined() ? g[i] : at::zeros(shape, like[i].options);
          const at::Tensor whole =
              all_gather_tensor_autograd(part, dims[i], group, sizes).reshape(like[i].sizes);
          gradients.push_back(op.op == ReduceOp::avg ? whole / group.size() : whole);
        }
        return gradients;
      });
}

at::Tensor all_to_all_single_autograd(const at::Tensor& self, const Splits& output_splits,
                                      const Splits& input_splits, const Group& group) {
  return differentiable(
      "AllToAllBackward", self,
      [=](const at::Tensor& x) { return all_to_all_single(x, output_splits, input_splits, group); },
      [=](const at::Tensor& g) { return all_to_all_single_autograd(g, input_splits, output_splits, group); });
}

at::Tensor broadcast_autograd(const at::Tensor& self, int source, const Group& group) {
  return differentiable(
      "BroadcastBackward", self, [=](const at::Tensor& x) { return broadcast(x, source, group); },
      [=](const at::Tensor& g) { return sum_at_source_autograd(g, source, group); });
}

at::Tensor permute_tensor_autograd(const at::Tensor& self, const RankPairs& pairs, const Group& group) {
  return differentiable(
      "PermuteBackward", self, [=](const at::Tensor& x) { return permute_tensor(x, pairs, group); },
      [=](const at::Tensor& g) {
        RankPairs back;
        for (const auto& [from, to] : pairs) back.emplace_back(to, from);
        return permute_tensor_autograd(g, back, group);
      });
}

}  // namespace meshtorch
