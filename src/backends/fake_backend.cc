// The `fake` backend: any world size, no communication; results have the right shapes and this rank's own
// data.
#include <ATen/ATen.h>

#include "backends/backend.h"
#include "backends/completed_work.h"

namespace meshtorch::internal {
namespace {

class FakeBackend : public c10d::Backend {
 public:
  FakeBackend(int rank, int size) : Backend(rank, size) {}

  const std::string getBackendName() const override { return "fake"; }
  void setTimeout(std::chrono::milliseconds) override {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions&) override { return done(tensors); }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions&) override { return done(tensors); }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions&) override {
    return done(tensors);
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions&) override { return done(tensors); }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions&) override {
    for (at::Tensor& output : outputs.at(0)) fill(output, inputs.at(0));
    return done(outputs[0]);
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input, const c10d::AllgatherOptions&) override {
    fill(output, input);
    return done({output});
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions&) override {
    for (std::size_t i = 0; i < outputs.size(); ++i) fill(outputs[i], inputs[i]);
    return done(outputs);
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions&) override {
    for (Tensors& list : outputs) {
      for (at::Tensor& output : list) fill(output, inputs.at(0));
    }
    return done({});
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions&) override {
    if (inputs.empty()) {
      outputs.at(0).zero_();
    } else {
      fill(outputs.at(0), inputs[0].at(static_cast<std::size_t>(rank_)));
    }
    return done(outputs);
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs, const c10d::ReduceScatterOptions&) override {
    fill(outputs.at(0), inputs.at(0).at(static_cast<std::size_t>(rank_)));
    return done(outputs);
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions&) override {
    fill(output, input);
    return done({output});
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions&) override {
    for (std::size_t i = 0; i < outputs.size(); ++i) fill(outputs[i], inputs[i]);
    return done(outputs);
  }
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>&, std::vector<int64_t>&,
                        const c10d::AllToAllOptions&) override {
    fill(output, input);
    return done({output});
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions&) override {
    for (std::size_t i = 0; i < outputs.size(); ++i) fill(outputs[i], inputs[i]);
    return done(outputs);
  }
  WorkPtr barrier(const c10d::BarrierOptions&) override { return done({}); }

 private:
  WorkPtr done(Tensors results) { return completed_work(rank_, std::move(results)); }

  // Fills `to` with the elements of `from`, repeated or cut as needed; zeros if there are none.
  static void fill(at::Tensor& to, const at::Tensor& from) {
    const at::NoGradGuard no_grad;
    if (to.numel() == 0) return;
    if (from.numel() == 0) {
      to.zero_();
      return;
    }
    const int64_t times = (to.numel() + from.numel() - 1) / from.numel();
    to.copy_(from.reshape({-1}).repeat({times}).narrow(0, 0, to.numel()).view(to.sizes()));
  }
};

}  // namespace

c10::intrusive_ptr<c10d::Backend> make_fake_backend(int rank, int size) {
  return c10::make_intrusive<FakeBackend>(rank, size);
}

}  // namespace meshtorch::internal
