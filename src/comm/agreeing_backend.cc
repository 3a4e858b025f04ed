// A backend whose ranks agree on each collective before anything is sent.
#include "comm/agreeing_backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <cstdlib>
#include <string_view>

#include "comm/agreed_work.h"
#include "comm/tensor_calls.h"

namespace meshtorch {
namespace {

class AgreeingBackend : public c10d::Backend {
 public:
  AgreeingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<Courier> courier,
                  std::shared_ptr<HostMembership> membership)
      : Backend(inner->getRank(), inner->getSize()),
        inner_(std::move(inner)),
        courier_(std::move(courier)),
        membership_(std::move(membership)) {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
    courier_->set_timeout(timeout);
  }
  void shutdown() override {
    courier_->drain();
    membership_->leave();
  }
  void abort() override { inner_->abort(); }
  void setSequenceNumberForGroup() override { inner_->setSequenceNumberForGroup(); }
  uint64_t getSequenceNumberForGroup() override { return inner_->getSequenceNumberForGroup(); }

  WorkPtr broadcast(Tensors& tensors, const c10d::BroadcastOptions& opts) override {
    return agreed(CallKind::broadcast, {.alike = tensors, .root = root_of(opts)},
                  [=, this, t = tensors]() mutable { return inner_->broadcast(t, opts); });
  }
  WorkPtr allreduce(Tensors& tensors, const c10d::AllreduceOptions& opts) override {
    return agreed(CallKind::all_reduce, {.alike = tensors, .op = op_of(opts)},
                  [=, this, t = tensors]() mutable { return inner_->allreduce(t, opts); });
  }
  WorkPtr allreduce_coalesced(Tensors& tensors, const c10d::AllreduceCoalescedOptions& opts) override {
    return agreed(CallKind::all_reduce, {.alike = tensors, .op = op_of(opts)},
                  [=, this, t = tensors]() mutable { return inner_->allreduce_coalesced(t, opts); });
  }
  WorkPtr reduce(Tensors& tensors, const c10d::ReduceOptions& opts) override {
    return agreed(CallKind::reduce, {.alike = tensors, .op = op_of(opts), .root = root_of(opts)},
                  [=, this, t = tensors]() mutable { return inner_->reduce(t, opts); });
  }
  WorkPtr allgather(TensorLists& outputs, Tensors& inputs, const c10d::AllgatherOptions& opts) override {
    return agreed(CallKind::all_gather, {.alike = outputs.at(0)},
                  [=, this, o = outputs, i = inputs]() mutable { return inner_->allgather(o, i, opts); });
  }
  WorkPtr _allgather_base(at::Tensor& output, at::Tensor& input,
                          const c10d::AllgatherOptions& opts) override {
    return agreed(CallKind::all_gather_into_tensor, {.alike = input},
                  [=, this, o = output, i = input]() mutable { return inner_->_allgather_base(o, i, opts); });
  }
  WorkPtr allgather_into_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::AllgatherOptions& opts) override {
    return agreed(CallKind::all_gather_into_tensor, {.alike = inputs},
                  [=, this, o = outputs, i = inputs]() mutable {
                    return inner_->allgather_into_tensor_coalesced(o, i, opts);
                  });
  }
  WorkPtr gather(TensorLists& outputs, Tensors& inputs, const c10d::GatherOptions& opts) override {
    return agreed(CallKind::gather, {.alike = inputs, .root = root_of(opts)},
                  [=, this, o = outputs, i = inputs]() mutable { return inner_->gather(o, i, opts); });
  }
  WorkPtr scatter(Tensors& outputs, TensorLists& inputs, const c10d::ScatterOptions& opts) override {
    return agreed(CallKind::scatter, {.alike = outputs, .root = root_of(opts)},
                  [=, this, o = outputs, i = inputs]() mutable { return inner_->scatter(o, i, opts); });
  }
  WorkPtr reduce_scatter(Tensors& outputs, TensorLists& inputs,
                         const c10d::ReduceScatterOptions& opts) override {
    return agreed(
        CallKind::reduce_scatter, {.alike = inputs.at(0), .op = op_of(opts)},
        [=, this, o = outputs, i = inputs]() mutable { return inner_->reduce_scatter(o, i, opts); });
  }
  WorkPtr _reduce_scatter_base(at::Tensor& output, at::Tensor& input,
                               const c10d::ReduceScatterOptions& opts) override {
    return agreed(
        CallKind::reduce_scatter_tensor, {.alike = input, .op = op_of(opts)},
        [=, this, o = output, i = input]() mutable { return inner_->_reduce_scatter_base(o, i, opts); });
  }
  WorkPtr reduce_scatter_tensor_coalesced(Tensors& outputs, Tensors& inputs,
                                          const c10d::ReduceScatterOptions& opts) override {
    return agreed(CallKind::reduce_scatter_tensor, {.alike = inputs, .op = op_of(opts)},
                  [=, this, o = outputs, i = inputs]() mutable {
                    return inner_->reduce_scatter_tensor_coalesced(o, i, opts);
                  });
  }
  // Splits are compared where meshtorch's own functions declare them; they know those of equal ones too.
  WorkPtr alltoall_base(at::Tensor& output, at::Tensor& input, std::vector<int64_t>& output_splits,
                        std::vector<int64_t>& input_splits, const c10d::AllToAllOptions& opts) override {
    return agreed(CallKind::all_to_all_single, {.of_type = input},
                  [=, this, o = output, i = input, receives = output_splits, sends = input_splits]() mutable {
                    return inner_->alltoall_base(o, i, receives, sends, opts);
                  });
  }
  WorkPtr alltoall(Tensors& outputs, Tensors& inputs, const c10d::AllToAllOptions& opts) override {
    return agreed(CallKind::all_to_all, {},
                  [=, this, o = outputs, i = inputs]() mutable { return inner_->alltoall(o, i, opts); });
  }
  WorkPtr barrier(const c10d::BarrierOptions& opts) override {
    return agreed(CallKind::barrier, {}, [=, this] { return inner_->barrier(opts); });
  }

  // Between two ranks, at their own pace.
  WorkPtr send(Tensors& tensors, int to, int tag) override { return inner_->send(tensors, to, tag); }
  WorkPtr recv(Tensors& tensors, int from, int tag) override { return inner_->recv(tensors, from, tag); }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override { return inner_->recvAnysource(tensors, tag); }

 private:
  template <class Options>
  static int root_of(const Options& opts) {
    return static_cast<int>(opts.rootRank);
  }
  template <class Options>
  static int op_of(const Options& opts) {
    return static_cast<int>(opts.reduceOp.op_);
  }

  WorkPtr agreed(CallKind kind, const OtherArguments& arguments, AgreedWork::Start start) {
    auto work = c10::make_intrusive<AgreedWork>(
        rank_, std::move(start), [courier = std::weak_ptr<Courier>(courier_)] {
          const auto alive = courier.lock();  // a result may be waited for after its group is gone
          return alive ? alive->explain() : "the group is gone";
        });
    if (const GroupCall* declared = DeclaredCall::current()) {
      courier_->post(*declared, work);
    } else {
      courier_->post(OtherCall(kind, arguments), work);
    }
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<Courier> courier_;
  std::shared_ptr<HostMembership> membership_;
};

bool is_off() {
  const char* level = std::getenv("MESHTORCH_AGREEMENT");
  return level != nullptr && std::string_view(level) == "off";
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> with_agreement(c10::intrusive_ptr<c10d::Backend> inner,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<std::int64_t>& ranks,
                                                 std::chrono::milliseconds timeout) {
  if (is_off() || ranks.size() == 1) return inner;
  const std::vector<int> members = members_on_host(*store, inner->getRank(), inner->getSize());
  if (members.size() == 1) return inner;
  std::vector<int> world_ranks;
  int own = 0;
  for (const int member : members) {
    if (member == inner->getRank()) own = static_cast<int>(world_ranks.size());
    world_ranks.push_back(static_cast<int>(ranks[static_cast<std::size_t>(member)]));
  }
  c10d::PrefixStore host_store(c10::str("host of ", members[0], " meets"), store);
  const auto membership = std::make_shared<HostMembership>(host_store, world_ranks, own, /*stage_bytes=*/64);
  auto courier = std::make_shared<Courier>(membership, static_cast<int>(members.size()), timeout);
  return c10::make_intrusive<AgreeingBackend>(std::move(inner), std::move(courier), membership);
}

}  // namespace meshtorch
