// Collectives of groups whose ranks share memory.
#include "comm/collectives_in_memory.h"

#include <ATen/ATen.h>

#include "comm/observed.h"
#include "comm/parts.h"
#include "comm/result_memory.h"
#include "comm/wire.h"
#include "core/shard.h"

namespace meshtorch::internal {
namespace {

std::int64_t total(const Splits& numbers) {
  std::int64_t all = 0;
  for (const std::int64_t number : numbers) all += number;
  return all;
}

// A reduction of these tensors: what goes in, what comes out.
struct InMemoryReduction {
  InMemoryReduction(ReduceOp op, at::TensorList tensors, const Group& group)
      : wire(op, tensors, group.size(), /*backend_averages=*/true) {}

  at::Tensor input(const at::Tensor& t) const {
    const at::NoGradGuard no_grad;
    return wire.encode(readable(t));
  }
  at::Tensor result(const at::Tensor& out) const {
    const at::NoGradGuard no_grad;
    return wire.decode(out);
  }
  ReduceOp op() const { return static_cast<ReduceOp>(wire.op()); }

  WireReduction wire;
};

at::Tensor with_rows(const at::Tensor& t) { return t.dim() == 0 ? t.view({1}) : t; }

}  // namespace

at::Tensor readable_rows(const at::Tensor& t) {
  const at::NoGradGuard no_grad;
  return with_rows(readable(t));
}

at::Tensor all_reduce_in_memory(MemoryBackend& memory, const at::Tensor& self, ReduceOp op,
                                const Group& group) {
  const InMemoryReduction reduction(op, self, group);
  const at::Tensor input = reduction.input(self);
  const at::Tensor out = empty_result(input.sizes(), input.options());
  observed(
      "c10d::allreduce_", [&] { return std::vector<c10::IValue>{Tensors{input}, group.process_group()}; },
      [&] { memory.all_reduce_into(AllReduceCall(input, op), input, out, reduction.op()); });
  return reduction.result(out);
}

Tensors all_reduce_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, ReduceOp op,
                                       const Group& group) {
  const InMemoryReduction reduction(op, self, group);
  Tensors inputs;
  Tensors outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(reduction.input(t));
    outputs.push_back(empty_result(inputs.back().sizes(), inputs.back().options()));
  }
  observed(
      "c10d::allreduce_coalesced_", [&] { return std::vector<c10::IValue>{inputs, group.process_group()}; },
      [&] { memory.all_reduce_into(AllReduceCall(inputs, op), inputs, outputs, reduction.op()); });
  for (at::Tensor& out : outputs) out = reduction.result(out);
  return outputs;
}

at::Tensor all_gather_in_memory(MemoryBackend& memory, const at::Tensor& input, std::int64_t dim,
                                const Splits& sizes, const Group& group) {
  const at::NoGradGuard no_grad;
  const at::Tensor part = as_cargo(input);
  const at::Tensor out = empty_result(sizes_with(part, dim, total(sizes)), part.options());
  observed(
      "c10d::_allgather_base_", [&] { return std::vector<c10::IValue>{out, part, group.process_group()}; },
      [&] { memory.all_gather_into(part, out, dim, sizes); });
  return from_cargo(out, input.scalar_type());
}

Tensors all_gather_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, const Group& group) {
  const at::NoGradGuard no_grad;
  Tensors inputs;
  Tensors outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(as_cargo(readable_rows(t)));
    const at::Tensor& part = inputs.back();
    outputs.push_back(empty_result(sizes_with(part, 0, part.size(0) * group.size()), part.options()));
  }
  const Splits sizes(static_cast<std::size_t>(group.size()), inputs[0].size(0));
  observed(
      "c10d::allgather_into_tensor_coalesced_",
      [&] { return std::vector<c10::IValue>{outputs, inputs, group.process_group()}; },
      [&] { memory.all_gather_into(inputs, outputs, 0, sizes); });
  for (std::size_t i = 0; i < self.size(); ++i) outputs[i] = from_cargo(outputs[i], self[i].scalar_type());
  return outputs;
}

at::Tensor reduce_scatter_in_memory(MemoryBackend& memory, const at::Tensor& self, ReduceOp op,
                                    std::int64_t dim, const Group& group) {
  const InMemoryReduction reduction(op, self, group);
  dim = wrapped_dim(dim, self);
  const at::Tensor input = with_rows(reduction.input(self));
  const Range mine = chunk(input.size(dim), group.size(), group.rank());
  const at::Tensor out = empty_result(sizes_with(input, dim, mine.size), input.options());
  observed(
      "c10d::_reduce_scatter_base_",
      [&] { return std::vector<c10::IValue>{out, input, group.process_group()}; },
      [&] {
        memory.reduce_scatter_into(ReduceScatterCall(input, dim, op), input, out, dim, reduction.op());
      });
  return reduction.result(out);
}

Tensors reduce_scatter_coalesced_in_memory(MemoryBackend& memory, const Tensors& self, ReduceOp op,
                                           const Splits& dims, const Group& group) {
  const InMemoryReduction reduction(op, self, group);
  Tensors inputs;
  Tensors outputs;
  Splits wrapped;
  for (std::size_t i = 0; i < self.size(); ++i) {
    wrapped.push_back(wrapped_dim(dims[i], self[i]));
    inputs.push_back(with_rows(reduction.input(self[i])));
    const at::Tensor& input = inputs.back();
    const Range mine = chunk(input.size(wrapped[i]), group.size(), group.rank());
    outputs.push_back(empty_result(sizes_with(input, wrapped[i], mine.size), input.options()));
  }
  observed(
      "c10d::reduce_scatter_tensor_coalesced_",
      [&] { return std::vector<c10::IValue>{outputs, inputs, group.process_group()}; },
      [&] {
        memory.reduce_scatter_into(ReduceScatterCall(inputs, wrapped, op), inputs, outputs, wrapped,
                                   reduction.op());
      });
  for (at::Tensor& out : outputs) out = reduction.result(out);
  return outputs;
}

at::Tensor exchange_in_memory(MemoryBackend& memory, const at::Tensor& input, const Splits& to_receive,
                              const Splits& to_send, const Group& group, c10::IntArrayRef sizes) {
  const at::NoGradGuard no_grad;
  const at::Tensor sent = as_cargo(input);
  const at::Tensor received = empty_result(sizes_with(sent, 0, total(to_receive)), sent.options());
  observed(
      "c10d::alltoall_base_",
      [&] { return std::vector<c10::IValue>{received, sent, group.process_group(), to_receive, to_send}; },
      [&] { memory.all_to_all_into(sent, received, to_receive, to_send); });
  return from_cargo(received, input.scalar_type()).view(sizes);
}

at::Tensor broadcast_in_memory(MemoryBackend& memory, const at::Tensor& self, int source,
                               const Group& group) {
  const at::NoGradGuard no_grad;
  const bool is_source = group.rank() == source;
  const at::Tensor buffer = as_cargo(
      is_source ? writable_copy(self) : empty_result(self.sizes(), self.options().requires_grad(false)));
  observed(
      "c10d::broadcast_", [&] { return std::vector<c10::IValue>{Tensors{buffer}, group.process_group()}; },
      [&] { memory.broadcast_into(buffer, source); });
  return from_cargo(buffer, self.scalar_type());
}

void barrier_in_memory(MemoryBackend& memory, const Group& group) {
  observed(
      "c10d::barrier", [&] { return std::vector<c10::IValue>{group.process_group()}; },
      [&] { memory.meet(); });
}

}  // namespace meshtorch::internal
