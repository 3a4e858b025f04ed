// The backends of ranks that share memory: `threads` of one process, and `shm` for processes of one host.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/comparing.h"
#include "backends/memory_exchange.h"
#include "signature/tensor_signatures.h"

namespace meshtorch::internal {

class MemoryBackend : public c10d::Backend, public Comparing {
 public:
  // `keeps_alive` is whatever the meeting's memory belongs to.
  MemoryBackend(std::string name, std::unique_ptr<MemoryExchange> exchange, std::shared_ptr<void> keeps_alive,
                std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return name_; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  // Called when the group is shut down.
  void on_shutdown(std::function<void()> leave) { leave_ = std::move(leave); }
  void shutdown() override {
    if (leave_) leave_();
  }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  // What meshtorch's own collectives call: contiguous tensors on the CPU, results in memory of their own, no
  // way through LibTorch's dispatcher.

  // `call` says what was asked for; `op` is what to do with elements that may have been encoded.
  void all_reduce_into(const CollectiveSignature& call, at::TensorList inputs, at::TensorList outputs,
                       ReduceOp op);
  // Rank r has sizes[r] of the outputs' dim `dim`.
  void all_gather_into(at::TensorList inputs, at::TensorList outputs, std::int64_t dim,
                       at::IntArrayRef sizes);
  // Each rank gets its part of each tensor's dim, as torch::chunk splits.
  void reduce_scatter_into(const CollectiveSignature& call, at::TensorList inputs, at::TensorList outputs,
                           at::IntArrayRef dims, ReduceOp op);
  // Rows of dim 0.
  void all_to_all_into(const at::Tensor& input, const at::Tensor& output, at::IntArrayRef receives,
                       at::IntArrayRef sends);
  void broadcast_into(const at::Tensor& tensor, int root);
  void meet();
  void compare(const CollectiveSignature& call) override;
  std::optional<bool> all_say(const CollectiveSignature& call, bool mine) override;

  // The same of bytes anywhere in memory: what MemoryExchange does, with this group's time limit.

  void gather_parts(const CollectiveSignature& call, RunList mine, std::span<const RunList> into);
  void exchange_parts(const CollectiveSignature& call, std::span<const RunList> parts,
                      std::span<const RunList> into);
  void reduce_parts(const CollectiveSignature& call, std::span<const RunList> parts, RunList out,
                    Reducing reducing);

  // The first half of a collective in two halves.
  std::shared_ptr<PostedCollectives::Posting> post(Lane lane, const CollectiveSignature& call,
                                                   PostedCollectives::Part part) {
    auto self = c10::intrusive_ptr<MemoryBackend>::unsafe_reclaim_from_nonowning(this);
    return exchange_->board().post(lane, call, std::move(part), timeout_,
                                   std::make_shared<decltype(self)>(std::move(self)));
  }

  // c10d's interface, in place where it is.

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override;
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override;
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override;
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override;
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override;
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions& opts) override;
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override;
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override;
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override;
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override;
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override;
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override;
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override;
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override;
  WorkPtr barrier(const c10d::BarrierOptions& opts) override;

 private:
  WorkPtr done(Tensors results);
  // inputs[r] goes to rank r, outputs[r] comes from it.
  void exchange_lists(CallKind kind, OtherArguments arguments, const Tensors& inputs, const Tensors& outputs);
  Tensors nothing_for_each(const at::Tensor& like) const;

  const std::string name_;
  std::shared_ptr<void> keeps_alive_;
  std::unique_ptr<MemoryExchange> exchange_;
  std::function<void()> leave_;
  std::chrono::milliseconds timeout_;
  std::mutex asking_;
};

}  // namespace meshtorch::internal
