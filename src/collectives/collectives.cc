// Collectives on plain tensors: checks of arguments; transport/ moves the data.
#include "meshtorch/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "backends/pending.h"
#include "backends/wire.h"
#include "kernels/parts.h"
#include "runtime/hidden_from_modes.h"
#include "signature/call_subject.h"
#include "transport/transport.h"

namespace meshtorch {
using namespace internal;
namespace {

std::int64_t sum(const Splits& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

bool wants_gradient(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }
bool wants_gradient(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return wants_gradient(t); });
}

}  // namespace

at::Tensor wait_tensor(const at::Tensor& tensor) {
  wait_pending(tensor);
  return tensor;
}

bool is_pending(const at::Tensor& tensor) { return is_pending_tensor(tensor); }

at::Tensor all_reduce(const at::Tensor& self, Reduction op, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_reduce_autograd(self, op, group);
  return TransportOf(group, self)->all_reduce(self, op.op);
}

Tensors all_reduce_coalesced(const Tensors& self, Reduction op, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_reduce_coalesced_autograd(self, op, group);
  group.process_group();  // members only
  if (self.empty()) return {};
  return TransportOf(group, self[0])->all_reduce_coalesced(self, op.op);
}

at::Tensor all_gather_tensor(const at::Tensor& self, std::int64_t dim, const Group& group,
                             const Splits& sizes, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_gather_tensor_autograd(self, dim, group, sizes);
  return TransportOf(group, self)->all_gather(self, dim, sizes);
}

Tensors all_gather_into_tensor_coalesced(const Tensors& self, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_gather_into_tensor_coalesced_autograd(self, group);
  group.process_group();  // members only
  if (self.empty()) return {};
  return TransportOf(group, self[0])->all_gather_coalesced(self);
}

at::Tensor reduce_scatter_tensor(const at::Tensor& self, Reduction op, std::int64_t dim, const Group& group,
                                 CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return reduce_scatter_tensor_autograd(self, op, dim, group);
  return TransportOf(group, self)->reduce_scatter(self, op.op, dim);
}

Tensors reduce_scatter_tensor_coalesced(const Tensors& self, Reduction op, const Splits& dims,
                                        const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return reduce_scatter_tensor_coalesced_autograd(self, op, dims, group);
  group.process_group();  // members only
  TORCH_CHECK_VALUE(dims.size() == self.size(), "meshtorch: reduce_scatter_tensor_coalesced got ",
                    self.size(), " tensors and ", dims.size(), " dims\n  do: give one dim for each tensor");
  if (self.empty()) return {};
  return TransportOf(group, self[0])->reduce_scatter_coalesced(self, op.op, dims);
}

at::Tensor all_to_all_single(const at::Tensor& self, const Splits& output_splits, const Splits& input_splits,
                             const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_to_all_single_autograd(self, output_splits, input_splits, group);
  const at::Tensor input = prepared(self);
  const int size = group.size();
  const auto complete = [&](const Splits& splits, const char* which) {
    TORCH_CHECK_VALUE(splits.empty() || static_cast<int>(splits.size()) == size,
                      "meshtorch: all_to_all_single over ", size, " ranks got ", splits.size(), " ", which,
                      "\n  do: give one for each rank, or none for equal ones");
    if (!splits.empty()) return splits;
    TORCH_CHECK_VALUE(input.size(0) % size == 0, "meshtorch: all_to_all_single without ", which,
                      " needs dim 0, ", input.size(0), ", to be a multiple of the group's size, ", size,
                      "\n  do: give ", which);
    return Splits(static_cast<std::size_t>(size), input.size(0) / size);
  };
  const Splits to_receive = complete(output_splits, "output_splits");
  const Splits to_send = complete(input_splits, "input_splits");
  TORCH_CHECK_VALUE(sum(to_send) == input.size(0), "meshtorch: all_to_all_single: input_splits add up to ",
                    sum(to_send), ", but dim 0 has ", input.size(0),
                    "\n  do: make them add up to the size of dim 0");
  return TransportOf(group, input)
      ->all_to_all(input, to_receive, to_send, sizes_with(input, 0, sum(to_receive)));
}

at::Tensor broadcast(const at::Tensor& self, int source, const Group& group) {
  const HiddenFromModes hidden;
  if (wants_gradient(self)) return broadcast_autograd(self, source, group);
  group.process_group();  // members only
  TORCH_CHECK_VALUE(source >= 0 && source < group.size(), "meshtorch: broadcast from rank ", source,
                    " of a group of ", group.size(), " ranks\n  do: give a rank of the group, from 0 to ",
                    group.size() - 1);
  wait_for_memory(self);
  return TransportOf(group, self)->broadcast(self, source);
}

at::Tensor permute_tensor(const at::Tensor& self, const RankPairs& pairs, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return permute_tensor_autograd(self, pairs, group);
  group.process_group();  // members only
  const auto size = static_cast<std::size_t>(group.size());
  Splits sends(size, 0);
  Splits receives(size, 0);
  std::vector<bool> has_sent(size);
  std::vector<bool> has_received(size);
  for (const auto& [from, to] : pairs) {
    const auto f = static_cast<std::size_t>(from);
    const auto t = static_cast<std::size_t>(to);
    TORCH_CHECK_VALUE(f < size && t < size, "meshtorch: permute_tensor: the pair ", from, " -> ", to,
                      " is not in a group of ", size, " ranks\n  do: give ranks of the group, from 0 to ",
                      size - 1);
    TORCH_CHECK_VALUE(
        !has_sent[f] && !has_received[t], "meshtorch: permute_tensor: a rank of the pair ", from, " -> ", to,
        " stands in another pair on the same side\n  do: let each rank send once and receive once");
    has_sent[f] = has_received[t] = true;
    if (from == group.rank()) sends[t] = self.numel();
    if (to == group.rank()) receives[f] = self.numel();
  }
  const auto here = static_cast<std::size_t>(group.rank());
  const at::Tensor flat = prepared(self).view({-1}).narrow(0, 0, has_sent.at(here) ? self.numel() : 0);
  const TransportOf transport(group, flat);
  if (has_received[here]) return transport->all_to_all(flat, receives, sends, self.sizes());
  transport->all_to_all(flat, receives, sends, {0});
  return at::zeros(self.sizes(), self.options());
}

void barrier(const Group& group) {
  const HiddenFromModes hidden;
  TransportOf(group)->barrier();
}

}  // namespace meshtorch
