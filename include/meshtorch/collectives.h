// Collectives on plain tensors, out of place. Results may still be under way: they wait by themselves at
// first use. Until then the input of a collective that moves data must not be changed in place. Of inputs
// that require gradients the results do too, any number of times; the derivative is that of the sum of all
// ranks' results, and its backward communicates on every rank.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "meshtorch/api.h"
#include "meshtorch/call_site.h"
#include "meshtorch/group.h"
#include "meshtorch/placement.h"

namespace at {
class Tensor;
}

namespace meshtorch {

// A reduction by name ("sum") or value (ReduceOp::sum).
struct Reduction {
  Reduction(ReduceOp value) : op(value) {}
  Reduction(const char* name) : op(parse_reduce_op(name)) {}
  Reduction(std::string_view name) : op(parse_reduce_op(name)) {}
  Reduction(const std::string& name) : op(parse_reduce_op(name)) {}
  ReduceOp op;
};

// Sizes of parts along a dim, one for each rank.
using Splits = std::vector<std::int64_t>;
// The tensors of a coalesced collective, in order.
using Tensors = std::vector<at::Tensor>;
// (from, to) pairs of ranks of the group.
using RankPairs = std::vector<std::pair<int, int>>;

// Blocks until the data of `tensor` is there, and gives the same tensor.
MESHTORCH_API at::Tensor wait_tensor(const at::Tensor& tensor);
MESHTORCH_API bool is_pending(const at::Tensor& tensor);

// The reduction of all ranks' tensors, which have one shape.
MESHTORCH_API at::Tensor all_reduce(const at::Tensor& self, Reduction op, const Group& group,
                                    CallSite site = CallSite::current());
MESHTORCH_API Tensors all_reduce_coalesced(const Tensors& self, Reduction op, const Group& group,
                                           CallSite site = CallSite::current());

// All ranks' tensors put together along `dim`. They have one shape, or differ in `dim` as `sizes`, one for
// each rank, says.
MESHTORCH_API at::Tensor all_gather_tensor(const at::Tensor& self, std::int64_t dim, const Group& group,
                                           const Splits& sizes = {}, CallSite site = CallSite::current());
// Several at once, along dim 0.
MESHTORCH_API Tensors all_gather_into_tensor_coalesced(const Tensors& self, const Group& group,
                                                       CallSite site = CallSite::current());

// This rank's part of the reduction, split along `dim` as torch::chunk splits: if the size does not divide,
// the last parts are short or empty.
MESHTORCH_API at::Tensor reduce_scatter_tensor(const at::Tensor& self, Reduction op, std::int64_t dim,
                                               const Group& group, CallSite site = CallSite::current());
MESHTORCH_API Tensors reduce_scatter_tensor_coalesced(const Tensors& self, Reduction op, const Splits& dims,
                                                      const Group& group,
                                                      CallSite site = CallSite::current());

// Sends input_splits[r] rows of dim 0 to rank r, and puts what comes from each rank, output_splits[r] rows,
// together. Empty splits: equal ones.
MESHTORCH_API at::Tensor all_to_all_single(const at::Tensor& self, const Splits& output_splits,
                                           const Splits& input_splits, const Group& group,
                                           CallSite site = CallSite::current());

// The tensor of rank `source` of the group, on every rank. The others give a tensor of its shape and type.
MESHTORCH_API at::Tensor broadcast(const at::Tensor& self, int source, const Group& group);

// The tensor of the rank that a pair sends here; zeros if none does.
MESHTORCH_API at::Tensor permute_tensor(const at::Tensor& self, const RankPairs& pairs, const Group& group,
                                        CallSite site = CallSite::current());

// Returns when every rank of the group has called it.
MESHTORCH_API void barrier(const Group& group = {});

// The same under the names that PyTorch gives to differentiable collectives.
MESHTORCH_API at::Tensor all_reduce_autograd(const at::Tensor& self, Reduction op, const Group& group);
MESHTORCH_API Tensors all_reduce_coalesced_autograd(const Tensors& self, Reduction op, const Group& group);
MESHTORCH_API at::Tensor all_gather_tensor_autograd(const at::Tensor& self, std::int64_t dim,
                                                    const Group& group, const Splits& sizes = {});
MESHTORCH_API Tensors all_gather_into_tensor_coalesced_autograd(const Tensors& self, const Group& group);
MESHTORCH_API at::Tensor reduce_scatter_tensor_autograd(const at::Tensor& self, Reduction op,
                                                        std::int64_t dim, const Group& group);
MESHTORCH_API Tensors reduce_scatter_tensor_coalesced_autograd(const Tensors& self, Reduction op,
                                                               const Splits& dims, const Group& group);
MESHTORCH_API at::Tensor all_to_all_single_autograd(const at::Tensor& self, const Splits& output_splits,
                                                    const Splits& input_splits, const Group& group);
MESHTORCH_API at::Tensor broadcast_autograd(const at::Tensor& self, int source, const Group& group);
MESHTORCH_API at::Tensor permute_tensor_autograd(const at::Tensor& self, const RankPairs& pairs,
                                                 const Group& group);

}  // namespace meshtorch
