// Collectives on plain tensors: the work goes to the group's c10d backend, results come back as pending
// tensors.
#include "meshtorch/collectives.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>

#include "comm/agreement.h"
#include "comm/call_subject.h"
#include "comm/collectives_in_memory.h"
#include "comm/comm_record.h"
#include "comm/hidden_from_modes.h"
#include "comm/parts.h"
#include "comm/pending.h"
#include "comm/rank_context.h"
#include "comm/tensor_calls.h"
#include "comm/wire.h"
#include "core/shard.h"

namespace meshtorch {
using namespace internal;
namespace {

// Waits for the work of a backend once, for all its results: some works of gloo write the results at every
// wait.
class Work {
 public:
  explicit Work(c10::intrusive_ptr<c10d::Work> work) : work_(std::move(work)) {}
  // What failed already is told where the result is used, as it is when it fails later: ranks of one program
  // hear of it at the same place.
  bool has_succeeded() { return work_->isCompleted() && work_->isSuccess(); }
  void wait() {
    std::call_once(once_, [&] {
      try {
        work_->wait();
      } catch (...) {
        error_ = std::current_exception();
      }
    });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  std::once_flag once_;
  std::exception_ptr error_;
};
using WorkPtr = std::shared_ptr<Work>;

WorkPtr shared(c10::intrusive_ptr<c10d::Work> work) { return std::make_shared<Work>(std::move(work)); }

std::int64_t sum(const Splits& numbers) {
  return std::accumulate(numbers.begin(), numbers.end(), std::int64_t{0});
}

// A tensor of the given shape that is there when `work` is done and `finish` has made it of the work's
// buffers.
at::Tensor result_of(const WorkPtr& work, Collective kind, c10::IntArrayRef sizes,
                     const at::TensorOptions& options, std::function<at::Tensor()> finish) {
  if (work->has_succeeded()) {
    work->wait();
    const at::NoGradGuard no_grad;
    return finish();
  }
  return make_pending(sizes, options, [work, kind, finish = std::move(finish)] {
    const CommWait waiting(kind);
    RECORD_USER_SCOPE(c10::str("meshtorch::wait_", to_string(kind)));
    work->wait();
    const at::NoGradGuard no_grad;
    return finish();
  });
}

Splits gather_sizes(const at::Tensor& t, std::int64_t dim, const Group& group, const Splits& sizes) {
  const auto count = static_cast<std::size_t>(group.size());
  if (sizes.empty()) return Splits(count, t.size(dim));
  TORCH_CHECK_VALUE(sizes.size() == count, "meshtorch: all_gather_tensor over ", count, " ranks got ",
                    sizes.size(), " sizes\n  do: give the size of every rank's tensor along dim ", dim,
                    ", or none if they are equal");
  const std::int64_t mine = sizes[static_cast<std::size_t>(group.rank())];
  TORCH_CHECK_VALUE(mine == t.size(dim), "meshtorch: all_gather_tensor: sizes say that rank ", group.rank(),
                    " has ", mine, " along dim ", dim, ", but its tensor is ", t.sizes(),
                    "\n  do: give the same true sizes on every rank");
  return sizes;
}

bool wants_gradient(const at::Tensor& tensor) { return tensor.requires_grad() && at::GradMode::is_enabled(); }
bool wants_gradient(const Tensors& tensors) {
  return std::any_of(tensors.begin(), tensors.end(), [](const at::Tensor& t) { return wants_gradient(t); });
}

// Starts the exchange of rows and gives what comes here, in the shape `sizes`.
at::Tensor exchange(const at::Tensor& input, Splits to_receive, Splits to_send, const Group& group,
                    c10::IntArrayRef sizes) {
  if (auto* memory = memory_for(group, input))
    return exchange_in_memory(*memory, input, to_receive, to_send, group, sizes);
  at::Tensor sent = as_cargo(input);
  at::Tensor received = at::empty(sizes_with(sent, 0, sum(to_receive)), sent.options());
  const AllToAllCall call(sent, to_receive, to_send);
  const AgreedCall agreed(call, group);
  const WorkPtr work = shared(
      group.process_group()->all_to_all_single(received, sent, to_receive, to_send, c10d::AllToAllOptions()));
  return result_of(work, Collective::all_to_all_single, sizes, input.options(),
                   [received, type = input.scalar_type(), shape = sizes.vec()] {
                     return from_cargo(received, type).view(shape);
                   });
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
  const auto& process_group = group.process_group();
  if (auto* memory = memory_for(group, self)) return all_reduce_in_memory(*memory, self, op.op, group);
  const WireReduction wire(op.op, {self}, group.size());
  std::vector<at::Tensor> buffers{wire.encode(writable_copy(self))};
  c10d::AllreduceOptions options;
  options.reduceOp = wire.op();
  const AllReduceCall call(buffers, op.op);
  const AgreedCall agreed(call, group);
  const WorkPtr work = shared(process_group->allreduce(buffers, options));
  return result_of(work, Collective::all_reduce, self.sizes(), self.options(),
                   [wire, buffer = buffers[0]] { return wire.decode(buffer); });
}

Tensors all_reduce_coalesced(const Tensors& self, Reduction op, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_reduce_coalesced_autograd(self, op, group);
  const auto& process_group = group.process_group();
  if (self.empty()) return {};
  if (auto* memory = memory_for(group, self[0]))
    return all_reduce_coalesced_in_memory(*memory, self, op.op, group);
  const WireReduction wire(op.op, self, group.size());
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& t : self) buffers.push_back(wire.encode(writable_copy(t)));
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = wire.op();
  const AllReduceCall call(buffers, op.op);
  const AgreedCall agreed(call, group);
  const WorkPtr work = shared(process_group->allreduce_coalesced(buffers, options));
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    results.push_back(result_of(work, Collective::all_reduce_coalesced, self[i].sizes(), self[i].options(),
                                [wire, buffer = buffers[i]] { return wire.decode(buffer); }));
  }
  return results;
}

at::Tensor all_gather_tensor(const at::Tensor& self, std::int64_t dim, const Group& group,
                             const Splits& sizes, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_gather_tensor_autograd(self, dim, group, sizes);
  const auto& process_group = group.process_group();
  auto* memory = memory_for(group, self);
  const at::Tensor input = memory != nullptr ? readable_rows(self) : prepared(self);
  dim = wrapped_dim(dim, input);
  const Splits each = gather_sizes(input, dim, group, sizes);
  if (memory != nullptr) return all_gather_in_memory(*memory, input, dim, each, group);
  const AllGatherCall call(input, dim, each);
  const AgreedCall agreed(call, group);
  at::Tensor part = as_cargo(padded(input, dim, *std::max_element(each.begin(), each.end())));
  at::Tensor stacked = at::empty(sizes_with(part, 0, part.size(0) * group.size()), part.options());
  const WorkPtr work = shared(process_group->all_gather_single(stacked, part, c10d::AllgatherOptions()));
  const bool is_joined = dim == 0 && sum(each) == stacked.size(0);
  return result_of(work, Collective::all_gather_into_tensor, sizes_with(input, dim, sum(each)),
                   input.options(), [=, type = input.scalar_type()] {
                     return from_cargo(is_joined ? stacked : joined_parts(stacked, dim, each), type);
                   });
}

Tensors all_gather_into_tensor_coalesced(const Tensors& self, const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return all_gather_into_tensor_coalesced_autograd(self, group);
  const auto& process_group = group.process_group();
  if (self.empty()) return {};
  if (auto* memory = memory_for(group, self[0])) return all_gather_coalesced_in_memory(*memory, self, group);
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(as_cargo(prepared(t)));
    outputs.push_back(at::empty(sizes_with(inputs.back(), 0, inputs.back().size(0) * group.size()),
                                inputs.back().options()));
  }
  const Splits sizes(static_cast<std::size_t>(group.size()), inputs[0].size(0));
  const AllGatherCall call(inputs, 0, sizes);
  const AgreedCall agreed(call, group);
  const WorkPtr work =
      shared(process_group->all_gather_single_coalesced(outputs, inputs, c10d::AllgatherOptions()));
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    const at::Tensor like = prepared(self[i]);
    results.push_back(result_of(
        work, Collective::all_gather_into_tensor_coalesced, sizes_with(like, 0, outputs[i].size(0)),
        like.options(), [out = outputs[i], type = like.scalar_type()] { return from_cargo(out, type); }));
  }
  return results;
}

at::Tensor reduce_scatter_tensor(const at::Tensor& self, Reduction op, std::int64_t dim, const Group& group,
                                 CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return reduce_scatter_tensor_autograd(self, op, dim, group);
  const auto& process_group = group.process_group();
  if (auto* memory = memory_for(group, self))
    return reduce_scatter_in_memory(*memory, self, op.op, dim, group);
  const WireReduction wire(op.op, {self}, group.size());
  const at::Tensor input = prepared(self);
  dim = wrapped_dim(dim, input);
  const std::int64_t largest = chunk(input.size(dim), group.size(), 0).size;
  const std::int64_t mine = chunk(input.size(dim), group.size(), group.rank()).size;
  const at::Tensor encoded = wire.encode(input);
  const ReduceScatterCall call(encoded, dim, op.op);
  const AgreedCall agreed(call, group);
  at::Tensor stacked = stacked_parts(encoded, dim, group.size());
  at::Tensor out = at::empty(sizes_with(encoded, dim, largest), encoded.options());
  c10d::ReduceScatterOptions options;
  options.reduceOp = wire.op();
  const WorkPtr work = shared(process_group->reduce_scatter_single(out, stacked, options));
  return result_of(work, Collective::reduce_scatter_tensor, sizes_with(input, dim, mine), input.options(),
                   [=] { return wire.decode(out).narrow(dim, 0, mine).contiguous(); });
}

Tensors reduce_scatter_tensor_coalesced(const Tensors& self, Reduction op, const Splits& dims,
                                        const Group& group, CallSite site) {
  const HiddenFromModes hidden;
  const CalledFrom called_from(site);
  if (wants_gradient(self)) return reduce_scatter_tensor_coalesced_autograd(self, op, dims, group);
  const auto& process_group = group.process_group();
  TORCH_CHECK_VALUE(dims.size() == self.size(), "meshtorch: reduce_scatter_tensor_coalesced got ",
                    self.size(), " tensors and ", dims.size(), " dims\n  do: give one dim for each tensor");
  if (self.empty()) return {};
  if (auto* memory = memory_for(group, self[0]))
    return reduce_scatter_coalesced_in_memory(*memory, self, op.op, dims, group);
  const WireReduction wire(op.op, self, group.size());
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::pair<std::int64_t, std::int64_t>> kept;  // (dim, size)
  for (std::size_t i = 0; i < self.size(); ++i) {
    const at::Tensor input = wire.encode(prepared(self[i]));
    const std::int64_t dim = wrapped_dim(dims[i], self[i]);
    inputs.push_back(stacked_parts(input, dim, group.size()));
    outputs.push_back(
        at::empty(sizes_with(input, dim, chunk(input.size(dim), group.size(), 0).size), input.options()));
    kept.emplace_back(dim, chunk(input.size(dim), group.size(), group.rank()).size);
  }
  c10d::ReduceScatterOptions options;
  options.reduceOp = wire.op();
  Splits wrapped;
  for (const auto& [dim, size] : kept) wrapped.push_back(dim);
  const ReduceScatterCall call(self, wrapped, op.op);
  const AgreedCall agreed(call, group);
  const WorkPtr work = shared(process_group->reduce_scatter_single_coalesced(outputs, inputs, options));
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    const auto [dim, mine] = kept[i];
    results.push_back(result_of(
        work, Collective::reduce_scatter_tensor_coalesced, sizes_with(prepared(self[i]), dim, mine),
        self[i].options(),
        [=, out = outputs[i], d = dim, n = mine] { return wire.decode(out).narrow(d, 0, n).contiguous(); }));
  }
  return results;
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
  return exchange(input, to_receive, to_send, group, sizes_with(input, 0, sum(to_receive)));
}

at::Tensor broadcast(const at::Tensor& self, int source, const Group& group) {
  const HiddenFromModes hidden;
  if (wants_gradient(self)) return broadcast_autograd(self, source, group);
  const auto& process_group = group.process_group();
  TORCH_CHECK_VALUE(source >= 0 && source < group.size(), "meshtorch: broadcast from rank ", source,
                    " of a group of ", group.size(), " ranks\n  do: give a rank of the group, from 0 to ",
                    group.size() - 1);
  wait_for_memory(self);
  if (auto* memory = memory_for(group, self)) return broadcast_in_memory(*memory, self, source, group);
  std::vector<at::Tensor> buffers{as_cargo(writable_copy(self))};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  const BroadcastCall call(buffers[0], source);
  const AgreedCall agreed(call, group);
  const WorkPtr work = shared(process_group->broadcast(buffers, options));
  return result_of(work, Collective::broadcast, self.sizes(), self.options(),
                   [buffer = buffers[0], type = self.scalar_type()] { return from_cargo(buffer, type); });
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
  if (has_received[here]) return exchange(flat, receives, sends, group, self.sizes());
  exchange(flat, receives, sends, group, {0});
  return at::zeros(self.sizes(), self.options());
}

void barrier(const Group& group) {
  const HiddenFromModes hidden;
  const auto& process_group = group.process_group();
  if (auto* memory = memory_backend_of(*process_group)) return barrier_in_memory(*memory, group);
  const GroupCall call(CallKind::barrier);
  const AgreedCall agreed(call, group);
  process_group->barrier(c10d::BarrierOptions())->wait();
}

}  // namespace meshtorch
