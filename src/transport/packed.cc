// Collectives by c10d: tensors are packed as its backends want them; results wait at their first use.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>
#include <exception>
#include <memory>
#include <mutex>
#include <numeric>

#include "backends/pending.h"
#include "backends/wire.h"
#include "core/shard.h"
#include "kernels/parts.h"
#include "signature/tensor_signatures.h"
#include "transport/comm_wait.h"
#include "transport/transport.h"
#include "world/agree.h"

namespace meshtorch::internal {
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

}  // namespace

at::Tensor PackedTransport::all_reduce(const at::Tensor& self, ReduceOp op) const {
  const WireReduction wire(op, {self}, group_.size());
  std::vector<at::Tensor> buffers{wire.encode(writable_copy(self))};
  c10d::AllreduceOptions options;
  options.reduceOp = wire.op();
  const AllReduceSignature call(buffers, op);
  const AgreementScope agreed(call, group_);
  const WorkPtr work = shared(group_.process_group()->allreduce(buffers, options));
  return result_of(work, Collective::all_reduce, self.sizes(), self.options(),
                   [wire, buffer = buffers[0]] { return wire.decode(buffer); });
}

Tensors PackedTransport::all_reduce_coalesced(const Tensors& self, ReduceOp op) const {
  const WireReduction wire(op, self, group_.size());
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& t : self) buffers.push_back(wire.encode(writable_copy(t)));
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = wire.op();
  const AllReduceSignature call(buffers, op);
  const AgreementScope agreed(call, group_);
  const WorkPtr work = shared(group_.process_group()->allreduce_coalesced(buffers, options));
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    results.push_back(result_of(work, Collective::all_reduce_coalesced, self[i].sizes(), self[i].options(),
                                [wire, buffer = buffers[i]] { return wire.decode(buffer); }));
  }
  return results;
}

at::Tensor PackedTransport::all_gather(const at::Tensor& self, std::int64_t dim, const Splits& sizes) const {
  const at::Tensor input = prepared(self);
  dim = wrapped_dim(dim, input);
  const Splits each = gather_sizes(input, dim, group_, sizes);
  const AllGatherSignature call(input, dim, each);
  const AgreementScope agreed(call, group_);
  at::Tensor part = as_cargo(padded(input, dim, *std::max_element(each.begin(), each.end())));
  at::Tensor stacked = at::empty(sizes_with(part, 0, part.size(0) * group_.size()), part.options());
  const WorkPtr work =
      shared(group_.process_group()->all_gather_single(stacked, part, c10d::AllgatherOptions()));
  const bool is_joined = dim == 0 && sum(each) == stacked.size(0);
  return result_of(work, Collective::all_gather_into_tensor, sizes_with(input, dim, sum(each)),
                   input.options(), [=, type = input.scalar_type()] {
                     return from_wire_bytes(is_joined ? stacked : joined_parts(stacked, dim, each), type);
                   });
}

Tensors PackedTransport::all_gather_coalesced(const Tensors& self) const {
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(as_cargo(prepared(t)));
    outputs.push_back(at::empty(sizes_with(inputs.back(), 0, inputs.back().size(0) * group_.size()),
                                inputs.back().options()));
  }
  const Splits sizes(static_cast<std::size_t>(group_.size()), inputs[0].size(0));
  const AllGatherSignature call(inputs, 0, sizes);
  const AgreementScope agreed(call, group_);
  const WorkPtr work =
      shared(group_.process_group()->all_gather_single_coalesced(outputs, inputs, c10d::AllgatherOptions()));
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    const at::Tensor like = prepared(self[i]);
    results.push_back(
        result_of(work, Collective::all_gather_into_tensor_coalesced, sizes_with(like, 0, outputs[i].size(0)),
                  like.options(),
                  [out = outputs[i], type = like.scalar_type()] { return from_wire_bytes(out, type); }));
  }
  return results;
}

at::Tensor PackedTransport::reduce_scatter(const at::Tensor& self, ReduceOp op, std::int64_t dim) const {
  const WireReduction wire(op, {self}, group_.size());
  const at::Tensor input = prepared(self);
  dim = wrapped_dim(dim, input);
  const std::int64_t largest = chunk(input.size(dim), group_.size(), 0).size;
  const std::int64_t mine = chunk(input.size(dim), group_.size(), group_.rank()).size;
  const at::Tensor encoded = wire.encode(input);
  const ReduceScatterSignature call(encoded, dim, op);
  const AgreementScope agreed(call, group_);
  at::Tensor stacked = stacked_parts(encoded, dim, group_.size());
  at::Tensor out = at::empty(sizes_with(encoded, dim, largest), encoded.options());
  c10d::ReduceScatterOptions options;
  options.reduceOp = wire.op();
  const WorkPtr work = shared(group_.process_group()->reduce_scatter_single(out, stacked, options));
  return result_of(work, Collective::reduce_scatter_tensor, sizes_with(input, dim, mine), input.options(),
                   [=] { return wire.decode(out).narrow(dim, 0, mine).contiguous(); });
}

Tensors PackedTransport::reduce_scatter_coalesced(const Tensors& self, ReduceOp op,
                                                  const Splits& dims) const {
  const WireReduction wire(op, self, group_.size());
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::pair<std::int64_t, std::int64_t>> kept;  // (dim, size)
  for (std::size_t i = 0; i < self.size(); ++i) {
    const at::Tensor input = wire.encode(prepared(self[i]));
    const std::int64_t dim = wrapped_dim(dims[i], self[i]);
    inputs.push_back(stacked_parts(input, dim, group_.size()));
    outputs.push_back(
        at::empty(sizes_with(input, dim, chunk(input.size(dim), group_.size(), 0).size), input.options()));
    kept.emplace_back(dim, chunk(input.size(dim), group_.size(), group_.rank()).size);
  }
  c10d::ReduceScatterOptions options;
  options.reduceOp = wire.op();
  Splits wrapped;
  for (const auto& [dim, size] : kept) wrapped.push_back(dim);
  const ReduceScatterSignature call(self, wrapped, op);
  const AgreementScope agreed(call, group_);
  const WorkPtr work =
      shared(group_.process_group()->reduce_scatter_single_coalesced(outputs, inputs, options));
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

at::Tensor PackedTransport::all_to_all(const at::Tensor& input, const Splits& receives, const Splits& sends,
                                       c10::IntArrayRef sizes) const {
  Splits to_receive = receives;
  Splits to_send = sends;
  at::Tensor sent = as_cargo(input);
  at::Tensor received = at::empty(sizes_with(sent, 0, sum(to_receive)), sent.options());
  const AllToAllSignature call(sent, to_receive, to_send);
  const AgreementScope agreed(call, group_);
  const WorkPtr work = shared(group_.process_group()->all_to_all_single(received, sent, to_receive, to_send,
                                                                        c10d::AllToAllOptions()));
  return result_of(work, Collective::all_to_all_single, sizes, input.options(),
                   [received, type = input.scalar_type(), shape = sizes.vec()] {
                     return from_wire_bytes(received, type).view(shape);
                   });
}

at::Tensor PackedTransport::broadcast(const at::Tensor& self, int source) const {
  std::vector<at::Tensor> buffers{as_cargo(writable_copy(self))};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  const BroadcastSignature call(buffers[0], source);
  const AgreementScope agreed(call, group_);
  const WorkPtr work = shared(group_.process_group()->broadcast(buffers, options));
  return result_of(
      work, Collective::broadcast, self.sizes(), self.options(),
      [buffer = buffers[0], type = self.scalar_type()] { return from_wire_bytes(buffer, type); });
}

void PackedTransport::scatter_into(Tensors& received, std::vector<Tensors>& sent, int source) const {
  c10d::ScatterOptions options;
  options.rootRank = source;
  group_.process_group()->scatter(received, sent, options)->wait();
}

void PackedTransport::barrier() const {
  const CollectiveSignature call(CallKind::barrier);
  const AgreementScope agreed(call, group_);
  group_.process_group()->barrier(c10d::BarrierOptions())->wait();
}

}  // namespace meshtorch::internal
