// Collectives between ranks that share memory, as meshtorch's own functions call them.
#include "backends/memory_backend.h"
#include "core/shard.h"
#include "kernels/tensor_runs.h"
#include "runtime/blocking.h"
#include "signature/tensor_signatures.h"

namespace meshtorch::internal {
namespace {

using RunLists = c10::SmallVector<RunList, 8>;

// `lists[r]`, of `count` runs each, of runs that lie one after the other.
RunLists lists_of(const RunVector& runs, int lists, std::size_t count) {
  RunLists result;
  for (int r = 0; r < lists; ++r) {
    result.push_back(RunList(runs.data(), runs.size()).subspan(static_cast<std::size_t>(r) * count, count));
  }
  return result;
}

// The chunk of every tensor along its dim, for one rank after the other.
RunVector chunks_of(at::TensorList tensors, at::IntArrayRef dims, int ranks) {
  RunVector parts;
  for (int r = 0; r < ranks; ++r) {
    const RunVector of_rank = chunks_for(tensors, dims, ranks, r);
    parts.append(of_rank.begin(), of_rank.end());
  }
  return parts;
}

}  // namespace

void MemoryBackend::all_reduce_into(const CollectiveSignature& call, at::TensorList inputs,
                                    at::TensorList outputs, ReduceOp op) {
  exchange_->all_reduce(call, wholes_of(inputs), wholes_of(outputs), {inputs[0].scalar_type(), op}, timeout_);
}

void MemoryBackend::all_gather_into(at::TensorList inputs, at::TensorList outputs, std::int64_t dim,
                                    at::IntArrayRef sizes) {
  RunVector parts;
  std::int64_t begin = 0;
  for (int r = 0; r < size_; ++r) {
    const std::int64_t size = sizes[static_cast<std::size_t>(r)];
    for (const at::Tensor& t : outputs) {
      // The sizes are those of one tensor; of several, each rank has an equal share.
      const std::int64_t mine = outputs.size() == 1 ? size : t.size(dim) / size_;
      parts.push_back(part_along(t, dim, outputs.size() == 1 ? begin : mine * r, mine));
    }
    begin += size;
  }
  exchange_->gather(AllGatherSignature(inputs, dim, sizes), wholes_of(inputs),
                    lists_of(parts, size_, outputs.size()), timeout_);
}

void MemoryBackend::reduce_scatter_into(const CollectiveSignature& call, at::TensorList inputs,
                                        at::TensorList outputs, at::IntArrayRef dims, ReduceOp op) {
  const RunVector parts = chunks_of(inputs, dims, size_);
  exchange_->reduce_scatter(call, lists_of(parts, size_, inputs.size()), wholes_of(outputs),
                            {inputs[0].scalar_type(), op}, timeout_);
}

void MemoryBackend::all_to_all_into(const at::Tensor& input, const at::Tensor& output,
                                    at::IntArrayRef receives, at::IntArrayRef sends) {
  const auto parts_of = [](const at::Tensor& t, at::IntArrayRef sizes) {
    RunVector parts;
    std::int64_t begin = 0;
    for (const std::int64_t size : sizes) {
      parts.push_back(part_along(t, 0, begin, size));
      begin += size;
    }
    return parts;
  };
  const RunVector given = parts_of(input, sends);
  const RunVector taken = parts_of(output, receives);
  const AllToAllSignature rows(input, receives, sends);
  const CollectiveSignature* declared = ScopedCallDescription::current();
  exchange_->exchange(declared != nullptr ? *declared : rows, lists_of(given, size_, 1),
                      lists_of(taken, size_, 1), timeout_);
}

void MemoryBackend::gather_parts(const CollectiveSignature& call, RunList mine,
                                 std::span<const RunList> into) {
  exchange_->gather(call, mine, into, timeout_);
}

void MemoryBackend::exchange_parts(const CollectiveSignature& call, std::span<const RunList> parts,
                                   std::span<const RunList> into) {
  exchange_->exchange(call, parts, into, timeout_);
}

void MemoryBackend::reduce_parts(const CollectiveSignature& call, std::span<const RunList> parts, RunList out,
                                 Reducing reducing) {
  exchange_->reduce_scatter(call, parts, out, reducing, timeout_);
}

void MemoryBackend::broadcast_into(const at::Tensor& tensor, int root) {
  const Runs all = whole_of(tensor);
  const Runs none{all.data, 0};
  RunLists into(static_cast<std::size_t>(size_), RunList(&none, 1));
  into[static_cast<std::size_t>(root)] = {&all, 1};
  exchange_->gather(BroadcastSignature(tensor, root), {rank_ == root ? &all : &none, 1}, into, timeout_);
}

void MemoryBackend::compare(const CollectiveSignature& call) { exchange_->barrier(call, timeout_); }

std::optional<bool> MemoryBackend::all_say(const CollectiveSignature& call, bool mine) {
  const auto lock = lock_across_ranks(asking_);
  return exchange_->all_say(call, mine, timeout_);
}

void MemoryBackend::meet() { exchange_->barrier(CollectiveSignature(CallKind::barrier), timeout_); }

}  // namespace meshtorch::internal
