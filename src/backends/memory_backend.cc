// c10d's interface to ranks that share memory: tensors of any strides, in place where c10d is.
#include "backends/memory_backend.h"

#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <numeric>

#include "backends/completed_work.h"
#include "kernels/reduce.h"
#include "kernels/tensor_runs.h"
#include "signature/tensor_signatures.h"

namespace meshtorch::internal {
namespace {

const at::Tensor& only(const std::vector<at::Tensor>& tensors, const char* backend) {
  TORCH_CHECK(tensors.size() == 1, "meshtorch: the ", backend, " backend takes one tensor per rank, not ",
              tensors.size());
  return tensors[0];
}

std::vector<at::Tensor> contiguous(at::TensorList tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& t : tensors) result.push_back(t.contiguous());
  return result;
}

// Contiguous room for results, which land in the caller's tensors at the end.
class OutputBuffers {
 public:
  explicit OutputBuffers(at::TensorList tensors) : tensors_(tensors) {
    for (const at::Tensor& t : tensors) {
      rooms_.push_back(t.is_contiguous() ? t : at::empty_like(t, at::MemoryFormat::Contiguous));
    }
  }
  const std::vector<at::Tensor>& rooms() const { return rooms_; }
  void finish() const {
    for (std::size_t i = 0; i < rooms_.size(); ++i) {
      if (!rooms_[i].is_same(tensors_[i])) tensors_[i].copy_(rooms_[i]);
    }
  }

 private:
  at::TensorList tensors_;
  std::vector<at::Tensor> rooms_;
};

at::Tensor flat(const at::Tensor& t) { return t.view({-1}); }

std::vector<at::Tensor> flat(const std::vector<at::Tensor>& tensors) {
  std::vector<at::Tensor> result;
  for (const at::Tensor& t : tensors) result.push_back(flat(t));
  return result;
}

std::vector<std::int64_t> numels(at::TensorList tensors) {
  std::vector<std::int64_t> result;
  for (const at::Tensor& t : tensors) result.push_back(t.numel());
  return result;
}

}  // namespace

MemoryBackend::MemoryBackend(std::string name, std::unique_ptr<MemoryExchange> exchange,
                             std::shared_ptr<void> keeps_alive, std::chrono::milliseconds timeout)
    : Backend(exchange->rank(), exchange->size()),
      name_(std::move(name)),
      keeps_alive_(std::move(keeps_alive)),
      exchange_(std::move(exchange)),
      timeout_(timeout) {}

MemoryBackend::WorkPtr MemoryBackend::done(Tensors results) {
  return completed_work(rank_, std::move(results));
}

MemoryBackend::WorkPtr MemoryBackend::broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) {
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = only(tensors, name_.c_str());
  const OutputBuffers output_buffers(tensors);
  const int root = static_cast<int>(opts.rootRank);
  if (rank_ == root && !tensor.is_contiguous()) output_buffers.rooms()[0].copy_(tensor);
  broadcast_into(output_buffers.rooms()[0], root);
  output_buffers.finish();
  return done(tensors);
}

MemoryBackend::WorkPtr MemoryBackend::allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) {
  const c10d::AllreduceCoalescedOptions coalesced{{opts}};
  return allreduce_coalesced(tensors, coalesced);
}

MemoryBackend::WorkPtr MemoryBackend::allreduce_coalesced(Tensors& tensors,
                                                          const c10d::AllreduceCoalescedOptions& opts) {
  const at::NoGradGuard no_grad;
  check_reducible(opts.reduceOp.op_, tensors);
  if (tensors.empty()) return done(tensors);
  const auto is_other = [&](const at::Tensor& t) { return t.scalar_type() != tensors[0].scalar_type(); };
  if (std::any_of(tensors.begin(), tensors.end(), is_other)) {
    for (const at::Tensor& t : tensors) {
      Tensors one{t};
      allreduce_coalesced(one, opts);
    }
    return done(tensors);
  }
  const OutputBuffers output_buffers(tensors);
  const ReduceOp op = to_reduce_op(opts.reduceOp.op_);
  all_reduce_into(AllReduceSignature(tensors, op), contiguous(tensors), output_buffers.rooms(), op);
  output_buffers.finish();
  return done(tensors);
}

MemoryBackend::WorkPtr MemoryBackend::reduce(Tensors& tensors, const c10d::ReduceOptions& opts) {
  const at::NoGradGuard no_grad;
  const at::Tensor& tensor = only(tensors, name_.c_str());
  check_reducible(opts.reduceOp.op_, tensors);
  const ReduceOp op = to_reduce_op(opts.reduceOp.op_);
  const int root = static_cast<int>(opts.rootRank);
  const OtherSignature call(CallKind::reduce, {.alike = tensors, .op = static_cast<int>(op), .root = root});
  const at::Tensor input = tensor.contiguous();
  const OutputBuffers output_buffers(tensors);
  const Runs all = whole_of(input);
  const Runs none{all.data, 0};
  std::vector<RunList> parts(static_cast<std::size_t>(size_), RunList(&none, 1));
  parts[static_cast<std::size_t>(root)] = {&all, 1};
  const Runs out = rank_ == root ? whole_of(output_buffers.rooms()[0]) : none;
  exchange_->reduce_scatter(call, parts, {&out, 1}, {tensor.scalar_type(), op}, timeout_);
  if (rank_ == root) output_buffers.finish();
  return done(tensors);
}

MemoryBackend::WorkPtr MemoryBackend::_allgather_base(at::Tensor& output, at::Tensor& input,
                                                      const c10d::AllgatherOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return allgather_into_tensor_coalesced(outputs, inputs, opts);
}

MemoryBackend::WorkPtr MemoryBackend::allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                                                      const c10d::AllgatherOptions&) {
  const at::NoGradGuard no_grad;
  Tensors rows;
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(outputs[i].is_contiguous() && outputs[i].numel() == inputs[i].numel() * size_,
                      "meshtorch: all_gather_into_tensor needs a contiguous output of ", size_,
                      " times the input's ", inputs[i].numel(), " elements, not ", outputs[i].sizes());
    std::vector<std::int64_t> stacked = inputs[i].sizes().vec();
    if (stacked.empty()) stacked.push_back(1);
    stacked[0] *= size_;
    rows.push_back(outputs[i].view(stacked));
  }
  if (inputs.empty()) return done(outputs);
  const std::int64_t each = rows[0].size(0) / size_;
  all_gather_into(contiguous(inputs), rows, 0,
                  std::vector<std::int64_t>(static_cast<std::size_t>(size_), each));
  return done(outputs);
}

// Lists may hold shards of different sizes: the list of the results, equal on all ranks, is what is agreed
// on.
MemoryBackend::WorkPtr MemoryBackend::allgather(TensorLists& outputs, Tensors& inputs,
                                                const c10d::AllgatherOptions&) {
  const Tensors given(static_cast<std::size_t>(size_), only(inputs, name_.c_str()));
  exchange_lists(CallKind::all_gather, {.alike = outputs.at(0)}, given, outputs[0]);
  return done(outputs[0]);
}

MemoryBackend::WorkPtr MemoryBackend::gather(TensorLists& outputs, Tensors& inputs,
                                             const c10d::GatherOptions& opts) {
  const at::Tensor& input = only(inputs, name_.c_str());
  const auto root = static_cast<std::size_t>(opts.rootRank);
  Tensors given = nothing_for_each(input);
  given[root] = input;
  exchange_lists(CallKind::gather, {.of_type = inputs, .root = static_cast<int>(root)}, given,
                 opts.rootRank == rank_ ? outputs.at(0) : nothing_for_each(input));
  return done(inputs);
}

MemoryBackend::WorkPtr MemoryBackend::scatter(Tensors& outputs, TensorLists& inputs,
                                              const c10d::ScatterOptions& opts) {
  const at::Tensor& output = only(outputs, name_.c_str());
  const auto root = static_cast<std::size_t>(opts.rootRank);
  Tensors expected = nothing_for_each(output);
  expected[root] = output;
  exchange_lists(CallKind::scatter, {.of_type = outputs, .root = static_cast<int>(root)},
                 opts.rootRank == rank_ ? inputs.at(0) : nothing_for_each(output), expected);
  return done(outputs);
}

MemoryBackend::WorkPtr MemoryBackend::alltoall(Tensors& outputs, Tensors& inputs,
                                               const c10d::AllToAllOptions&) {
  exchange_lists(CallKind::all_to_all, {.of_type = at::TensorList(inputs).slice(0, inputs.empty() ? 0 : 1)},
                 inputs, outputs);
  return done(outputs);
}

MemoryBackend::Tensors MemoryBackend::nothing_for_each(const at::Tensor& like) const {
  return Tensors(static_cast<std::size_t>(size_), at::empty({0}, like.options()));
}

void MemoryBackend::exchange_lists(CallKind kind, OtherArguments arguments, const Tensors& inputs,
                                   const Tensors& outputs) {
  const at::NoGradGuard no_grad;
  const auto count = static_cast<std::size_t>(size_);
  TORCH_CHECK_VALUE(inputs.size() == count && outputs.size() == count, "meshtorch: ", to_string(kind),
                    " over ", size_, " ranks got lists of ", inputs.size(), " and ", outputs.size(),
                    " tensors\n  do: give one tensor for each rank");
  const std::vector<std::int64_t> sends = numels(inputs);
  const std::vector<std::int64_t> receives = numels(outputs);
  const CallSplits splits{sends, receives, "elements"};
  arguments.splits = &splits;
  const Tensors given = contiguous(inputs);
  const OutputBuffers output_buffers(outputs);
  const RunVector mine = wholes_of(given);
  const RunVector rooms = wholes_of(output_buffers.rooms());
  std::vector<RunList> parts;
  std::vector<RunList> into;
  for (std::size_t r = 0; r < count; ++r) {
    parts.emplace_back(&mine[r], 1);
    into.emplace_back(&rooms[r], 1);
  }
  exchange_->exchange(OtherSignature(kind, arguments), parts, into, timeout_);
  output_buffers.finish();
}

// A list of one part for each rank, whose shapes may differ.
MemoryBackend::WorkPtr MemoryBackend::reduce_scatter(Tensors& outputs, TensorLists& inputs,
                                                     const c10d::ReduceScatterOptions& opts) {
  const at::NoGradGuard no_grad;
  const at::Tensor& output = only(outputs, name_.c_str());
  check_reducible(opts.reduceOp.op_, inputs.at(0));
  const ReduceOp op = to_reduce_op(opts.reduceOp.op_);
  TORCH_CHECK_VALUE(static_cast<int>(inputs[0].size()) == size_ &&
                        inputs[0][static_cast<std::size_t>(rank_)].numel() == output.numel(),
                    "meshtorch: reduce_scatter needs a list of ", size_,
                    " tensors, of which this rank's is like the output, ", output.sizes(), ", not ",
                    describe(inputs[0]), "\n  do: give one tensor for each rank");
  const OtherSignature call(CallKind::reduce_scatter, {.alike = inputs[0], .op = static_cast<int>(op)});
  const Tensors given = contiguous(inputs[0]);
  const OutputBuffers output_buffers(outputs);
  const RunVector runs = wholes_of(given);
  std::vector<RunList> parts;
  for (const Runs& part : runs) parts.emplace_back(&part, 1);
  const Runs out = whole_of(output_buffers.rooms()[0]);
  exchange_->reduce_scatter(call, parts, {&out, 1}, {output.scalar_type(), op}, timeout_);
  output_buffers.finish();
  return done(outputs);
}

MemoryBackend::WorkPtr MemoryBackend::_reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                                                           const c10d::ReduceScatterOptions& opts) {
  Tensors outputs{output};
  Tensors inputs{input};
  return reduce_scatter_tensor_coalesced(outputs, inputs, opts);
}

MemoryBackend::WorkPtr MemoryBackend::reduce_scatter_tensor_coalesced(
    Tensors& outputs, Tensors& inputs, const c10d::ReduceScatterOptions& opts) {
  const at::NoGradGuard no_grad;
  check_reducible(opts.reduceOp.op_, inputs);
  if (inputs.empty()) return done(outputs);
  for (std::size_t i = 0; i < inputs.size(); ++i) {
    TORCH_CHECK_VALUE(
        inputs[i].numel() == outputs[i].numel() * size_ && inputs[i].scalar_type() == inputs[0].scalar_type(),
        "meshtorch: reduce_scatter_tensor needs ", size_, " times the output's ", outputs[i].numel(),
        " elements, all of one type, not ", describe(inputs[i]));
  }
  const OutputBuffers output_buffers(outputs);
  const std::vector<std::int64_t> dims(inputs.size(), 0);
  const ReduceOp op = to_reduce_op(opts.reduceOp.op_);
  reduce_scatter_into(ReduceScatterSignature(inputs, dims, op), flat(contiguous(inputs)),
                      flat(output_buffers.rooms()), dims, op);
  output_buffers.finish();
  return done(outputs);
}

MemoryBackend::WorkPtr MemoryBackend::alltoall_base(at::Tensor& output, at::Tensor& input,
                                                    std::vector<int64_t>& output_splits,
                                                    std::vector<int64_t>& input_splits,
                                                    const c10d::AllToAllOptions&) {
  const at::NoGradGuard no_grad;
  const auto complete = [&](std::vector<int64_t>& splits, const at::Tensor& t) {
    const auto count = static_cast<std::size_t>(size_);
    if (splits.empty()) {
      TORCH_CHECK_VALUE(t.dim() > 0 && t.size(0) % size_ == 0,
                        "meshtorch: all_to_all_single without split sizes needs dim 0 to be a multiple of ",
                        size_, ", not ", t.sizes());
      splits.assign(count, t.size(0) / size_);
    }
    TORCH_CHECK_VALUE(splits.size() == count && t.dim() > 0 &&
                          std::accumulate(splits.begin(), splits.end(), std::int64_t{0}) == t.size(0),
                      "meshtorch: all_to_all_single over ", size_, " ranks got the splits ",
                      c10::IntArrayRef(splits), " of ", t.sizes(),
                      "\n  do: give one for each rank, which add up to the size of dim 0");
  };
  complete(output_splits, output);
  complete(input_splits, input);
  const OutputBuffers output_buffers(output);
  all_to_all_into(input.contiguous(), output_buffers.rooms()[0], output_splits, input_splits);
  output_buffers.finish();
  return done({output});
}

MemoryBackend::WorkPtr MemoryBackend::barrier(const c10d::BarrierOptions&) {
  meet();
  return done({});
}

}  // namespace meshtorch::internal
