// A backend whose ranks agree on each collective before anything is sent.
#include "backends/agreeing_backend.h"

#include <torch/csrc/distributed/c10d/PrefixStore.hpp>

#include <algorithm>

#include "agreement/cross_host_agreement.h"
#include "backends/agreed_work.h"
#include "backends/comparing.h"
#include "backends/completed_work.h"
#include "backends/world.h"
#include "liveness/remote_ranks.h"
#include "signature/tensor_signatures.h"

namespace meshtorch::internal {
namespace {

// The other members of a group.
struct Peers : WorkPeers {
  std::unique_ptr<RemoteRanks> remote;  // those on other hosts; null if there are none
  Wait in_backend;
  std::shared_ptr<HostMembership> membership;
  std::unique_ptr<AgreementThread> agreement_thread;

  Peers() = default;
  // What is still under way ends while the others are known.
  ~Peers() override { agreement_thread.reset(); }
  Peers(const Peers&) = delete;
  Peers& operator=(const Peers&) = delete;

  // A failure of the backend is told to the members on this host.
  std::string explain(const std::string& backend_words) const override {
    const WhyUnreachable why_unreachable = membership->why_unreachable_in_a_moment();
    std::string reason = why_unreachable.words;
    if (remote && (!why_unreachable.is_there() || why_unreachable.cause == WhyUnreachable::Cause::gave_up))
      reason += (reason.empty() ? "" : "\n  ") + remote->explain(backend_words);
    if (reason.empty()) reason = agreement_thread->describe() + agreement_thread->follow(in_backend.ranks);
    membership->say(ExitReason::gave_up, "a collective failed after all ranks had come: " + reason);
    return reason;
  }
  void help(const AgreedWork& work) const override { agreement_thread->help(work); }
  void tell_wait(Stage stage) const override {
    Wait wait = in_backend;
    wait.is_given_up = stage == Stage::gave_up;
    tell_wait_in_all_groups(membership->world_rank(), WaitPlace::group,
                            stage == Stage::goes_on ? nullptr : &wait);
  }
};

class AgreeingBackend : public c10d::Backend, public Comparing {
 public:
  AgreeingBackend(c10::intrusive_ptr<c10d::Backend> inner, std::shared_ptr<const Peers> peers)
      : Backend(inner->getRank(), inner->getSize()), inner_(std::move(inner)), peers_(std::move(peers)) {}

  using WorkPtr = c10::intrusive_ptr<c10d::Work>;
  using Tensors = std::vector<at::Tensor>;
  using TensorLists = std::vector<std::vector<at::Tensor>>;

  const std::string getBackendName() const override { return inner_->getBackendName(); }
  void setTimeout(std::chrono::milliseconds timeout) override {
    inner_->setTimeout(timeout);
    peers_->agreement_thread->set_timeout(timeout);
  }
  void shutdown() override {
    peers_->agreement_thread->drain();
    peers_->membership->leave();
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
  WorkPtr send(Tensors& tensors, int to, int tag) override {
    return explained([=, this, t = tensors]() mutable { return inner_->send(t, to, tag); });
  }
  WorkPtr recv(Tensors& tensors, int from, int tag) override {
    return explained([=, this, t = tensors]() mutable { return inner_->recv(t, from, tag); });
  }
  WorkPtr recvAnysource(Tensors& tensors, int tag) override {
    return explained([=, this, t = tensors]() mutable { return inner_->recvAnysource(t, tag); });
  }

  void compare(const CollectiveSignature& call) override {
    const auto nothing = work_of([this] { return completed_work(rank_, {}); });
    peers_->agreement_thread->post(call, nothing);
    nothing->wait(kNoTimeout);
  }

 private:
  template <class Options>
  static int root_of(const Options& opts) {
    return static_cast<int>(opts.rootRank);
  }
  template <class Options>
  static int op_of(const Options& opts) {
    return static_cast<int>(opts.reduceOp.op_);
  }

  c10::intrusive_ptr<AgreedWork> work_of(AgreedWork::Start start) {
    return c10::make_intrusive<AgreedWork>(rank_, std::move(start), peers_);
  }
  // Work that needs no agreement.
  WorkPtr explained(AgreedWork::Start start) {
    auto work = work_of(std::move(start));
    work->start();
    return work;
  }
  WorkPtr agreed(CallKind kind, const OtherArguments& arguments, AgreedWork::Start start) {
    auto work = work_of(std::move(start));
    if (const CollectiveSignature* declared = ScopedCallDescription::current()) {
      peers_->agreement_thread->post(*declared, work);
    } else {
      peers_->agreement_thread->post(OtherSignature(kind, arguments), work);
    }
    return work;
  }

  c10::intrusive_ptr<c10d::Backend> inner_;
  std::shared_ptr<const Peers> peers_;
};

// Where the members are, from the point of view of member `rank`.
HostsMeeting::Places places_of(std::vector<std::vector<int>> hosts, const std::vector<std::int64_t>& ranks,
                               int rank) {
  HostsMeeting::Places places{{ranks.begin(), ranks.end()}, std::move(hosts), 0, 0};
  for (std::size_t h = 0; h < places.hosts.size(); ++h) {
    const std::vector<int>& members = places.hosts[h];
    const auto self = std::find(members.begin(), members.end(), rank);
    if (self == members.end()) continue;
    places.host = h;
    places.member = static_cast<std::size_t>(self - members.begin());
  }
  return places;
}

// What a rank waits for when it waits for the data of others.
Wait wait_in_backend(const std::vector<int>& world_ranks_here, int self, const RemoteRanks* remote) {
  Wait wait;
  for (const int r : world_ranks_here) {
    if (r != self) wait.ranks.push_back(r);
  }
  if (!wait.ranks.empty()) wait.what = "the data of " + list_ranks(wait.ranks) + " in the backend";
  if (remote != nullptr) {
    wait.what.append(wait.what.empty() ? "" : ", or ").append("an answer from ").append(remote->names());
    wait.is_for_others = true;
  }
  return wait;
}

}  // namespace

c10::intrusive_ptr<c10d::Backend> with_agreement(c10::intrusive_ptr<c10d::Backend> inner,
                                                 const c10::intrusive_ptr<c10d::Store>& store,
                                                 const std::vector<std::int64_t>& ranks, const World& world,
                                                 const std::string& address, const Connect& connect) {
  if (world.agreement == Agreement::off || ranks.size() == 1) return inner;
  const int rank = inner->getRank();
  HostsMeeting::Places places = places_of(members_by_host(*store, ranks, rank), ranks, rank);
  const std::vector<int>& members = places.hosts[places.host];
  const std::size_t host = places.host;
  const std::size_t host_count = places.hosts.size();
  const bool is_first = places.member == 0;
  std::vector<int> world_ranks;
  for (const int member : members)
    world_ranks.push_back(static_cast<int>(ranks[static_cast<std::size_t>(member)]));

  const auto peers = std::make_shared<Peers>();
  if (host_count > 1)
    peers->remote = std::make_unique<RemoteRanks>(*store, world.store, ranks, rank, members, address);
  peers->in_backend = wait_in_backend(world_ranks, world.rank, peers->remote.get());
  c10d::PrefixStore host_store(c10::str("host of ", members[0], " meets"), store);
  peers->membership =
      std::make_shared<HostMembership>(host_store, world_ranks, static_cast<int>(places.member),
                                       host_count > 1 ? HostsMeeting::stage_bytes(ranks.size()) : 64);
  auto meeting = peers->membership->meeting(world.size, places.world_ranks);
  std::unique_ptr<HostsMeeting> hosts;
  if (host_count > 1) {
    c10::intrusive_ptr<c10d::Backend> first_ones;
    if (is_first)
      first_ones = connect(c10::make_intrusive<c10d::PrefixStore>("hosts meet", store),
                           static_cast<int>(host), static_cast<int>(host_count));
    const Peers* known = peers.get();  // it outlives the meetings
    hosts = std::make_unique<HostsMeeting>(
        *meeting, std::move(places), std::move(first_ones),
        [known](const std::string& words) { return known->explain(words); },
        [known](bool waits) {
          known->tell_wait(waits ? WorkPeers::Stage::waits : WorkPeers::Stage::goes_on);
        });
  }
  peers->agreement_thread = std::make_unique<AgreementThread>(peers->membership, std::move(meeting),
                                                              std::move(hosts), world.timeout);
  return c10::make_intrusive<AgreeingBackend>(std::move(inner), peers);
}

}  // namespace meshtorch::internal
