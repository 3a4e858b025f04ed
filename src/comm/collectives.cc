// Collectives on plain tensors: the work goes to the group's c10d backend, results come back as pending tensors.
#include "meshtorch/collectives.h"

#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "comm/pending.h"
#include "comm/rank_context.h"
#include "comm/reduce.h"
#include "core/shard.h"
#include "debug/comm_record.h"

namespace meshtorch {
namespace {

using WorkPtr = c10::intrusive_ptr<c10d::Work>;
using Op = c10d::ReduceOp;

// A reduction as every backend can do it, and what is left to do with its result.
struct LoweredReduction {
  Op::RedOpType op;
  bool as_bytes;   // bool tensors travel as uint8
  double divisor;  // of an average, which is a sum until then

  at::Tensor encode(const at::Tensor& t) const { return as_bytes ? t.view(at::kByte) : t; }
  at::Tensor decode(at::Tensor t) const {
    if (as_bytes) return t.view(at::kBool);
    return divisor == 1 ? t : t.div_(divisor);
  }
};

LoweredReduction lower(ReduceOp op, const Tensors& tensors, int group_size) {
  const auto asked = static_cast<Op::RedOpType>(op);
  check_reducible(asked, tensors);
  const bool is_bool = !tensors.empty() && tensors[0].scalar_type() == at::kBool;
  if (!is_bool) return {asked == Op::AVG ? Op::SUM : asked, false, asked == Op::AVG ? static_cast<double>(group_size) : 1.0};
  switch (asked) {
    case Op::SUM:
    case Op::BOR:
      return {Op::MAX, true, 1};
    case Op::PRODUCT:
    case Op::BAND:
      return {Op::MIN, true, 1};
    default:
      return {asked, true, 1};
  }
}

// What the c10d call needs: no graph, no gaps, nothing pending, at least one dim.
at::Tensor prepared(const at::Tensor& t) {
  wait_pending(t);
  const at::Tensor plain = t.detach().contiguous();
  return plain.dim() == 0 ? plain.view({1}) : plain;
}

at::Tensor writable(const at::Tensor& t) {
  wait_pending(t);
  return t.detach().clone(at::MemoryFormat::Contiguous);
}

at::Tensor result_of(const WorkPtr& work, Collective kind, c10::IntArrayRef sizes, const at::TensorOptions& options,
                     std::function<at::Tensor()> finish) {
  if (!work || work->isCompleted()) {
    if (work) work->wait();
    return finish();
  }
  return make_pending(sizes, options, [work, kind, finish = std::move(finish)] {
    const CommWait waiting(kind);
    work->wait();
    const at::NoGradGuard no_grad;
    return finish();
  });
}

std::int64_t wrapped(std::int64_t dim, const at::Tensor& t) {
  const std::int64_t rank = std::max<std::int64_t>(t.dim(), 1);
  TORCH_CHECK_INDEX(dim >= -rank && dim < rank, "meshtorch: a tensor of ", t.dim(), " dims has no dim ", dim);
  return dim < 0 ? dim + rank : dim;
}

std::vector<std::int64_t> with_size(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  std::vector<std::int64_t> sizes = t.sizes().vec();
  sizes[static_cast<std::size_t>(dim)] = size;
  return sizes;
}

at::Tensor padded(const at::Tensor& t, std::int64_t dim, std::int64_t size) {
  if (t.size(dim) == size) return t;
  at::Tensor room = at::zeros(with_size(t, dim, size), t.options());
  room.narrow(dim, 0, t.size(dim)).copy_(t);
  return room;
}

// The parts of t along dim for each rank, all of one (padded) size, one after the other.
at::Tensor stacked_parts(const at::Tensor& t, std::int64_t dim, int group_size) {
  const std::int64_t size = t.size(dim);
  if (dim == 0 && size % group_size == 0) return t;
  const std::int64_t largest = chunk(size, group_size, 0).size;
  std::vector<at::Tensor> parts;
  for (int r = 0; r < group_size; ++r) {
    const Range mine = chunk(size, group_size, r);
    parts.push_back(padded(t.narrow(dim, mine.begin, mine.size), dim, largest));
  }
  return at::cat(parts, 0);
}

// `stacked` has the (padded) parts of all ranks one after the other along dim 0: puts them together along dim.
at::Tensor joined_parts(const at::Tensor& stacked, std::int64_t dim, const Splits& sizes) {
  const auto count = static_cast<std::int64_t>(sizes.size());
  const std::int64_t rows = stacked.size(0) / count;
  std::vector<at::Tensor> parts;
  for (std::int64_t r = 0; r < count; ++r) {
    parts.push_back(stacked.narrow(0, r * rows, rows).narrow(dim, 0, sizes[static_cast<std::size_t>(r)]));
  }
  return at::cat(parts, dim);
}

Splits gather_sizes(const at::Tensor& t, std::int64_t dim, const Group& group, const Splits& sizes) {
  const auto count = static_cast<std::size_t>(group.size());
  if (sizes.empty()) return Splits(count, t.size(dim));
  TORCH_CHECK_VALUE(sizes.size() == count, "meshtorch: all_gather_tensor over ", count, " ranks got ", sizes.size(), " sizes");
  const std::int64_t mine = sizes[static_cast<std::size_t>(group.rank())];
  TORCH_CHECK_VALUE(mine == t.size(dim), "meshtorch: all_gather_tensor: sizes say that rank ", group.rank(), " has ", mine,
                    " along dim ", dim, ", but its tensor is ", t.sizes());
  return sizes;
}

void check_one_type(const Tensors& tensors) {
  for (const at::Tensor& t : tensors) {
    TORCH_CHECK_VALUE(t.scalar_type() == tensors[0].scalar_type(), "meshtorch: a coalesced collective takes tensors of one type, not ",
                      c10::toString(tensors[0].scalar_type()), " and ", c10::toString(t.scalar_type()));
  }
}

}  // namespace

at::Tensor wait_tensor(const at::Tensor& tensor) {
  wait_pending(tensor);
  return tensor;
}

bool is_pending(const at::Tensor& tensor) { return is_pending_tensor(tensor); }

at::Tensor all_reduce(const at::Tensor& self, Reduction op, const Group& group) {
  const auto& process_group = group.process_group();
  const LoweredReduction lowered = lower(op.op, {self}, group.size());
  const at::Tensor out = writable(self);
  if (out.numel() == 0) return out;
  std::vector<at::Tensor> buffers{lowered.encode(out)};
  c10d::AllreduceOptions options;
  options.reduceOp = lowered.op;
  const WorkPtr work = process_group->allreduce(buffers, options);
  return result_of(work, Collective::all_reduce, out.sizes(), out.options(),
                   [=, buffer = buffers[0]] { return lowered.decode(buffer); });
}

Tensors all_reduce_coalesced(const Tensors& self, Reduction op, const Group& group) {
  const auto& process_group = group.process_group();
  if (self.empty()) return {};
  check_one_type(self);
  const LoweredReduction lowered = lower(op.op, self, group.size());
  std::vector<at::Tensor> buffers;
  for (const at::Tensor& t : self) buffers.push_back(lowered.encode(writable(t)));
  c10d::AllreduceCoalescedOptions options;
  options.reduceOp = lowered.op;
  const WorkPtr work = process_group->allreduce_coalesced(buffers, options);
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    results.push_back(result_of(work, Collective::all_reduce_coalesced, self[i].sizes(), self[i].options(),
                                [=, buffer = buffers[i]] { return lowered.decode(buffer); }));
  }
  return results;
}

at::Tensor all_gather_tensor(const at::Tensor& self, std::int64_t dim, const Group& group, const Splits& sizes) {
  const auto& process_group = group.process_group();
  const at::Tensor input = prepared(self);
  dim = wrapped(dim, input);
  const Splits each = gather_sizes(input, dim, group, sizes);
  const std::int64_t total = std::accumulate(each.begin(), each.end(), std::int64_t{0});
  at::Tensor part = padded(input, dim, *std::max_element(each.begin(), each.end()));
  at::Tensor stacked = at::empty(with_size(part, 0, part.size(0) * group.size()), part.options());
  WorkPtr work;
  if (part.numel() > 0) work = process_group->all_gather_single(stacked, part, c10d::AllgatherOptions());
  const bool in_place = dim == 0 && total == stacked.size(0);
  return result_of(work, Collective::all_gather_into_tensor, with_size(input, dim, total), input.options(),
                   [=] { return in_place ? stacked : joined_parts(stacked, dim, each); });
}

Tensors all_gather_into_tensor_coalesced(const Tensors& self, const Group& group) {
  const auto& process_group = group.process_group();
  if (self.empty()) return {};
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(prepared(t));
    outputs.push_back(at::empty(with_size(inputs.back(), 0, inputs.back().size(0) * group.size()), t.options()));
  }
  const WorkPtr work = process_group->all_gather_single_coalesced(outputs, inputs, c10d::AllgatherOptions());
  Tensors results;
  for (const at::Tensor& out : outputs) {
    results.push_back(result_of(work, Collective::all_gather_into_tensor_coalesced, out.sizes(), out.options(),
                                [out] { return out; }));
  }
  return results;
}

at::Tensor reduce_scatter_tensor(const at::Tensor& self, Reduction op, std::int64_t dim, const Group& group) {
  const auto& process_group = group.process_group();
  const LoweredReduction lowered = lower(op.op, {self}, group.size());
  const at::Tensor input = prepared(self);
  dim = wrapped(dim, input);
  at::Tensor stacked = lowered.encode(stacked_parts(input, dim, group.size()));
  const std::int64_t largest = chunk(input.size(dim), group.size(), 0).size;
  const std::int64_t mine = chunk(input.size(dim), group.size(), group.rank()).size;
  at::Tensor out = at::empty(with_size(input, dim, largest), stacked.options());
  WorkPtr work;
  if (out.numel() > 0) {
    c10d::ReduceScatterOptions options;
    options.reduceOp = lowered.op;
    work = process_group->reduce_scatter_single(out, stacked, options);
  }
  return result_of(work, Collective::reduce_scatter_tensor, with_size(input, dim, mine), input.options(),
                   [=] { return lowered.decode(out).narrow(dim, 0, mine).contiguous(); });
}

Tensors reduce_scatter_tensor_coalesced(const Tensors& self, Reduction op, const Splits& dims, const Group& group) {
  const auto& process_group = group.process_group();
  if (self.empty()) return {};
  check_one_type(self);
  TORCH_CHECK_VALUE(dims.size() == self.size(), "meshtorch: reduce_scatter_tensor_coalesced got ", self.size(), " tensors and ",
                    dims.size(), " dims");
  const LoweredReduction lowered = lower(op.op, self, group.size());
  std::vector<at::Tensor> inputs;
  std::vector<at::Tensor> outputs;
  std::vector<std::pair<std::int64_t, std::int64_t>> kept;  // (dim, size)
  for (std::size_t i = 0; i < self.size(); ++i) {
    const at::Tensor input = prepared(self[i]);
    const std::int64_t dim = wrapped(dims[i], input);
    inputs.push_back(lowered.encode(stacked_parts(input, dim, group.size())));
    outputs.push_back(at::empty(with_size(input, dim, chunk(input.size(dim), group.size(), 0).size), inputs.back().options()));
    kept.emplace_back(dim, chunk(input.size(dim), group.size(), group.rank()).size);
  }
  c10d::ReduceScatterOptions options;
  options.reduceOp = lowered.op;
  const WorkPtr work = process_group->reduce_scatter_single_coalesced(outputs, inputs, options);
  Tensors results;
  for (std::size_t i = 0; i < self.size(); ++i) {
    const auto [dim, mine] = kept[i];
    results.push_back(result_of(work, Collective::reduce_scatter_tensor_coalesced, with_size(outputs[i], dim, mine),
                                self[i].options(), [=, out = outputs[i], d = dim, n = mine] {
                                  return lowered.decode(out).narrow(d, 0, n).contiguous();
                                }));
  }
  return results;
}

at::Tensor all_to_all_single(const at::Tensor& self, const Splits& output_splits, const Splits& input_splits,
                             const Group& group) {
  const auto& process_group = group.process_group();
  at::Tensor input = prepared(self);
  const int size = group.size();
  const auto complete = [&](Splits splits, const char* which) {
    if (splits.empty()) {
      TORCH_CHECK_VALUE(input.size(0) % size == 0, "meshtorch: all_to_all_single without ", which, " needs dim 0, ", input.size(0),
                        ", to be a multiple of the group's size, ", size);
      splits.assign(static_cast<std::size_t>(size), input.size(0) / size);
    }
    TORCH_CHECK_VALUE(static_cast<int>(splits.size()) == size, "meshtorch: all_to_all_single over ", size, " ranks got ",
                      splits.size(), " ", which);
    return splits;
  };
  Splits out_splits = complete(output_splits, "output_splits");
  Splits in_splits = complete(input_splits, "input_splits");
  const std::int64_t sent = std::accumulate(in_splits.begin(), in_splits.end(), std::int64_t{0});
  TORCH_CHECK_VALUE(sent == input.size(0), "meshtorch: all_to_all_single: input_splits add up to ", sent, ", but dim 0 has ",
                    input.size(0));
  const std::int64_t received = std::accumulate(out_splits.begin(), out_splits.end(), std::int64_t{0});
  at::Tensor out = at::empty(with_size(input, 0, received), input.options());
  const WorkPtr work = process_group->all_to_all_single(out, input, out_splits, in_splits, c10d::AllToAllOptions());
  return result_of(work, Collective::all_to_all_single, out.sizes(), out.options(), [=] { return out; });
}

at::Tensor broadcast(const at::Tensor& self, int source, const Group& group) {
  const auto& process_group = group.process_group();
  TORCH_CHECK_VALUE(source >= 0 && source < group.size(), "meshtorch: broadcast from rank ", source, " of a group of ", group.size());
  const at::Tensor out = writable(self);
  if (out.numel() == 0) return out;
  std::vector<at::Tensor> buffers{out};
  c10d::BroadcastOptions options;
  options.rootRank = source;
  const WorkPtr work = process_group->broadcast(buffers, options);
  return result_of(work, Collective::broadcast, out.sizes(), out.options(), [=] { return out; });
}

at::Tensor permute_tensor(const at::Tensor& self, const RankPairs& pairs, const Group& group) {
  const auto size = static_cast<std::size_t>(group.size());
  Splits sends(size, 0);
  Splits receives(size, 0);
  std::vector<bool> has_sent(size);
  std::vector<bool> has_received(size);
  for (const auto& [from, to] : pairs) {
    const auto f = static_cast<std::size_t>(from);
    const auto t = static_cast<std::size_t>(to);
    TORCH_CHECK_VALUE(f < size && t < size, "meshtorch: permute_tensor: the pair ", from, " -> ", to, " is not in a group of ", size);
    TORCH_CHECK_VALUE(!has_sent[f] && !has_received[t], "meshtorch: permute_tensor: a rank of the pair ", from, " -> ", to,
                      " stands in another pair on the same side");
    has_sent[f] = has_received[t] = true;
    if (from == group.rank()) sends[t] = self.numel();
    if (to == group.rank()) receives[f] = self.numel();
  }
  wait_pending(self);
  const bool is_sender = std::any_of(sends.begin(), sends.end(), [](std::int64_t n) { return n > 0; });
  const bool is_receiver = std::any_of(receives.begin(), receives.end(), [](std::int64_t n) { return n > 0; });
  const at::Tensor flat = self.detach().reshape({-1}).narrow(0, 0, is_sender ? self.numel() : 0);
  const at::Tensor moved = all_to_all_single(flat, receives, sends, group);
  if (is_receiver || self.numel() == 0) return moved.view(self.sizes());
  return at::zeros_like(self.detach(), at::MemoryFormat::Contiguous);
}

void barrier(const Group& group) { group.process_group()->barrier(c10d::BarrierOptions())->wait(); }

}  // namespace meshtorch
