// The `threads` backend: collectives of thread ranks through shared memory, each rank writing only its own
// results.
#pragma once

#include <torch/csrc/distributed/c10d/Backend.hpp>

#include <functional>
#include <memory>

#include "comm/thread_world.h"

namespace meshtorch {

class ThreadsBackend : public c10d::Backend {
 public:
  ThreadsBackend(std::shared_ptr<ThreadWorld> world, std::shared_ptr<ThreadMeeting> meeting, int rank,
                 std::chrono::milliseconds timeout);

  const std::string getBackendName() const override { return "threads"; }
  void setTimeout(std::chrono::milliseconds timeout) override { timeout_ = timeout; }

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

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
  // What a rank shows to its peers during a collective.
  struct Arguments {
    Tensors inputs;
    std::vector<int64_t> splits;
  };
  // Gives the arguments of the peer with this group rank.
  using Peers = std::function<const Arguments&(int)>;

  // Meets the peers, runs `body`, and returns when all have finished reading this rank's inputs.
  WorkPtr meet(const char* name, const std::string& signature, Arguments arguments,
               const std::function<void(const Peers&)>& body);
  // Like meet, with a second part that runs when every rank has finished the first.
  WorkPtr meet(const char* name, const std::string& signature, Arguments arguments,
               const std::function<void(const Peers&)>& body,
               const std::function<void(const Peers&)>& after_all);

  std::shared_ptr<ThreadWorld> world_;
  std::shared_ptr<ThreadMeeting> meeting_;
  std::chrono::milliseconds timeout_;
};

}  // namespace meshtorch
