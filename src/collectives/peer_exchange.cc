// Messages between pairs of ranks. A batch is one exchange of bytes with each peer; the pairs meet in one
// order everywhere, so that rings cannot block themselves.
#include "collectives/peer_exchange.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <map>

#include "backends/pending.h"
#include "runtime/host_tensor.h"
#include "runtime/key.h"
#include "transport/transport.h"
#include "world/rank_context.h"

namespace meshtorch::internal {
namespace {

void check_peer(int peer, const Group& group, const char* act) {
  group.process_group();  // members only
  TORCH_CHECK_VALUE(peer >= 0 && peer < group.size() && peer != group.rank(), "meshtorch: ", act, " rank ",
                    peer, " of a group of ", group.size(), " ranks, on its rank ", group.rank(),
                    "\n  do: name another rank of the group, from 0 to ", group.size() - 1);
}

// Observers see each message as c10d's own.
void tell_observers(const char* name, const at::Tensor& tensor, const Group& group, int peer, int tag) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (!record.isActive()) return;
  const std::vector<c10::IValue> values{std::vector<at::Tensor>{tensor}, group.process_group(),
                                        static_cast<std::int64_t>(peer), static_cast<std::int64_t>(tag)};
  record.before(name, &values);
}

void check_messages(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives,
                    const Group& group) {
  for (const SendTo& s : sends) {
    check_peer(s.to, group, "send to");
    TORCH_CHECK_VALUE(
        !s.tensor.key_set().has(kMeshKey), "meshtorch: send got a distributed tensor of shape ",
        s.tensor.sizes(),
        "\n  do: send its to_local(), or bring it to a mesh of the other ranks with redistribute");
  }
  for (const ReceiveFrom& r : receives) check_peer(r.from, group, "recv from");
  const auto known = current_rank()->find_group(group.ranks());
  TORCH_CHECK_NOT_IMPLEMENTED(known && known->process_group == group.process_group(),
                              "meshtorch: send and recv in a group that was made elsewhere, which does not "
                              "tell its ranks\n  do: give "
                              "the ranks, as Group({…}), or use c10d's own send and recv");
}

// By the pair of ranks, in the order in which pairs meet.
using Peers = std::map<std::pair<std::int64_t, std::int64_t>, PeerMessages>;

Peers by_pair(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives,
              const Group& group) {
  Peers peers;
  const auto peer_at = [&](int rank) -> PeerMessages& {
    return peers[std::minmax(group.ranks()[static_cast<std::size_t>(group.rank())],
                             group.ranks()[static_cast<std::size_t>(rank)])];
  };
  for (const SendTo& s : sends) {
    PeerMessages& peer = peer_at(s.to);
    peer.sends.push_back({s.tensor.sizes().vec(), s.tensor.scalar_type(), s.tensor.requires_grad(), s.tag});
    peer.given.push_back(s.tensor.detach());
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const ReceiveFrom& r = receives[i];
    PeerMessages& peer = peer_at(r.from);
    peer.receives.push_back(
        {r.sizes, c10::typeMetaToScalarType(r.options.dtype()), r.options.requires_grad(), r.tag});
    peer.positions.push_back(i);
    peer.options.push_back(r.options);
  }
  return peers;
}

void tell_observers_of(const PeerMessages& peer, const Group& pair, int other) {
  for (std::size_t i = 0; i < peer.sends.size(); ++i)
    tell_observers("c10d::send", peer.given[i], pair, other, peer.sends[i].tag);
  for (const Message& message : peer.receives)
    tell_observers("c10d::recv_", at::empty(message.sizes, at::TensorOptions(message.type).device(at::kMeta)),
                   pair, other, message.tag);
}

// A zero that is there when all have arrived.
at::Tensor zero_after(const std::vector<std::shared_ptr<MessageWait>>& arrivals) {
  if (arrivals.empty()) return at::zeros({}, on_host(at::kFloat));
  return make_pending({}, at::TensorOptions(at::kFloat), [arrivals] {
    for (const auto& arrival : arrivals) arrival->wait(Collective::send);
    return at::zeros({}, on_host(at::kFloat));
  });
}

}  // namespace

SentAndReceived exchange_with_peers(const std::vector<SendTo>& sends,
                                    const std::vector<ReceiveFrom>& receives, const Group& group, Meet meet) {
  check_messages(sends, receives, group);
  const auto context = current_rank();
  const std::int64_t self = context->world().rank;
  const Peers peers = by_pair(sends, receives, group);
  const at::NoGradGuard no_grad;
  SentAndReceived results;
  results.received.resize(receives.size());
  std::vector<std::shared_ptr<MessageWait>> arrivals;
  for (const auto& [ranks, peer] : peers) {
    const std::vector<std::int64_t> both{ranks.first, ranks.second};
    const std::int64_t other = both[0] == self ? both[1] : both[0];
    std::shared_ptr<const GroupImpl> pair;  // made at their first message, when both have come
    naming(text_of_messages(peer.sends, peer.receives, other), [&] { pair = context->group(both); });
    const Group both_ranks(pair);
    tell_observers_of(peer, both_ranks, static_cast<int>(other));
    const MessagesUnderway underway =
        meet == Meet::when_used ? TransportOf(both_ranks, peer.device())->exchange_messages(peer, self, other)
                                : PackedTransport(both_ranks).exchange_messages(peer, self, other);
    for (std::size_t i = 0; i < peer.positions.size(); ++i)
      results.received[peer.positions[i]] = underway.received[i];
    if (underway.arrival) arrivals.push_back(underway.arrival);
  }
  results.sent = zero_after(arrivals);
  return results;
}

}  // namespace meshtorch::internal
