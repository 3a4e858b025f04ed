// Collectives of ranks that share memory: straight to the backend, into the final layout.
#include <ATen/ATen.h>

#include "backends/memory_backend.h"
#include "backends/wire.h"
#include "core/shard.h"
#include "kernels/parts.h"
#include "kernels/result_memory.h"
#include "signature/tensor_signatures.h"
#include "transport/observed.h"
#include "transport/transport.h"

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

at::Tensor SharedMemoryTransport::all_reduce(const at::Tensor& self, ReduceOp op) const {
  const InMemoryReduction reduction(op, self, group_);
  const at::Tensor input = reduction.input(self);
  const at::Tensor out = empty_result(input.sizes(), input.options());
  observed(
      "c10d::allreduce_", [&] { return std::vector<c10::IValue>{Tensors{input}, group_.process_group()}; },
      [&] { memory_.all_reduce_into(AllReduceSignature(input, op), input, out, reduction.op()); });
  return reduction.result(out);
}

Tensors SharedMemoryTransport::all_reduce_coalesced(const Tensors& self, ReduceOp op) const {
  const InMemoryReduction reduction(op, self, group_);
  Tensors inputs;
  Tensors outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(reduction.input(t));
    outputs.push_back(empty_result(inputs.back().sizes(), inputs.back().options()));
  }
  observed(
      "c10d::allreduce_coalesced_", [&] { return std::vector<c10::IValue>{inputs, group_.process_group()}; },
      [&] { memory_.all_reduce_into(AllReduceSignature(inputs, op), inputs, outputs, reduction.op()); });
  for (at::Tensor& out : outputs) out = reduction.result(out);
  return outputs;
}

at::Tensor SharedMemoryTransport::all_gather(const at::Tensor& self, std::int64_t dim,
                                             const Splits& given) const {
  const at::NoGradGuard no_grad;
  const at::Tensor input = with_rows(readable(self));
  dim = wrapped_dim(dim, input);
  const Splits sizes = gather_sizes(input, dim, group_, given);
  const at::Tensor part = as_cargo(input);
  const at::Tensor out = empty_result(sizes_with(part, dim, total(sizes)), part.options());
  observed(
      "c10d::_allgather_base_", [&] { return std::vector<c10::IValue>{out, part, group_.process_group()}; },
      [&] { memory_.all_gather_into(part, out, dim, sizes); });
  return from_wire_bytes(out, input.scalar_type());
}

Tensors SharedMemoryTransport::all_gather_coalesced(const Tensors& self) const {
  const at::NoGradGuard no_grad;
  Tensors inputs;
  Tensors outputs;
  for (const at::Tensor& t : self) {
    inputs.push_back(as_cargo(with_rows(readable(t))));
    const at::Tensor& part = inputs.back();
    outputs.push_back(empty_result(sizes_with(part, 0, part.size(0) * group_.size()), part.options()));
  }
  const Splits sizes(static_cast<std::size_t>(group_.size()), inputs[0].size(0));
  observed(
      "c10d::allgather_into_tensor_coalesced_",
      [&] { return std::vector<c10::IValue>{outputs, inputs, group_.process_group()}; },
      [&] { memory_.all_gather_into(inputs, outputs, 0, sizes); });
  for (std::size_t i = 0; i < self.size(); ++i)
    outputs[i] = from_wire_bytes(outputs[i], self[i].scalar_type());
  return outputs;
}

at::Tensor SharedMemoryTransport::reduce_scatter(const at::Tensor& self, ReduceOp op,
                                                 std::int64_t dim) const {
  const InMemoryReduction reduction(op, self, group_);
  dim = wrapped_dim(dim, self);
  const at::Tensor input = with_rows(reduction.input(self));
  const Range mine = chunk(input.size(dim), group_.size(), group_.rank());
  const at::Tensor out = empty_result(sizes_with(input, dim, mine.size), input.options());
  observed(
      "c10d::_reduce_scatter_base_",
      [&] { return std::vector<c10::IValue>{out, input, group_.process_group()}; },
      [&] {
        memory_.reduce_scatter_into(ReduceScatterSignature(input, dim, op), input, out, dim, reduction.op());
      });
  return reduction.result(out);
}

Tensors SharedMemoryTransport::reduce_scatter_coalesced(const Tensors& self, ReduceOp op,
                                                        const Splits& dims) const {
  const InMemoryReduction reduction(op, self, group_);
  Tensors inputs;
  Tensors outputs;
  Splits wrapped;
  for (std::size_t i = 0; i < self.size(); ++i) {
    wrapped.push_back(wrapped_dim(dims[i], self[i]));
    inputs.push_back(with_rows(reduction.input(self[i])));
    const at::Tensor& input = inputs.back();
    const Range mine = chunk(input.size(wrapped[i]), group_.size(), group_.rank());
    outputs.push_back(empty_result(sizes_with(input, wrapped[i], mine.size), input.options()));
  }
  observed(
      "c10d::reduce_scatter_tensor_coalesced_",
      [&] { return std::vector<c10::IValue>{outputs, inputs, group_.process_group()}; },
      [&] {
        memory_.reduce_scatter_into(ReduceScatterSignature(inputs, wrapped, op), inputs, outputs, wrapped,
                                    reduction.op());
      });
  for (at::Tensor& out : outputs) out = reduction.result(out);
  return outputs;
}

at::Tensor SharedMemoryTransport::all_to_all(const at::Tensor& input, const Splits& to_receive,
                                             const Splits& to_send, c10::IntArrayRef sizes) const {
  const at::NoGradGuard no_grad;
  const at::Tensor sent = as_cargo(input);
  const at::Tensor received = empty_result(sizes_with(sent, 0, total(to_receive)), sent.options());
  observed(
      "c10d::alltoall_base_",
      [&] { return std::vector<c10::IValue>{received, sent, group_.process_group(), to_receive, to_send}; },
      [&] { memory_.all_to_all_into(sent, received, to_receive, to_send); });
  return from_wire_bytes(received, input.scalar_type()).view(sizes);
}

at::Tensor SharedMemoryTransport::broadcast(const at::Tensor& self, int source) const {
  const at::NoGradGuard no_grad;
  const bool is_source = group_.rank() == source;
  const at::Tensor buffer = as_cargo(
      is_source ? writable_copy(self) : empty_result(self.sizes(), self.options().requires_grad(false)));
  observed(
      "c10d::broadcast_", [&] { return std::vector<c10::IValue>{Tensors{buffer}, group_.process_group()}; },
      [&] { memory_.broadcast_into(buffer, source); });
  return from_wire_bytes(buffer, self.scalar_type());
}

void SharedMemoryTransport::scatter_into(Tensors& received, std::vector<Tensors>& sent, int source) const {
  c10d::ScatterOptions options;
  options.rootRank = source;
  observed(
      "c10d::scatter_", [&] { return std::vector<c10::IValue>{received, sent, group_.process_group()}; },
      [&] { memory_.scatter(received, sent, options); });
}

void SharedMemoryTransport::barrier() const {
  observed(
      "c10d::barrier", [&] { return std::vector<c10::IValue>{group_.process_group()}; },
      [&] { memory_.meet(); });
}

}  // namespace meshtorch::internal
