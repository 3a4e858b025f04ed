// Messages between pairs of ranks. A batch is one exchange of bytes with each peer; the pairs meet in one
// order everywhere, so that rings cannot block themselves.
#include "comm/peer_exchange.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>
#include <exception>
#include <functional>
#include <map>
#include <mutex>

#include "comm/backend.h"
#include "comm/comm_record.h"
#include "comm/host_tensor.h"
#include "comm/key.h"
#include "comm/memory_backend.h"
#include "comm/pending.h"
#include "comm/rank_context.h"
#include "comm/tensor_calls.h"
#include "comm/tensor_runs.h"
#include "comm/wire.h"

namespace meshtorch::internal {
namespace {

using Bytes = std::vector<std::int64_t>;

// One tensor on its way, as both ranks know it.
struct Parcel {
  std::vector<std::int64_t> sizes;
  at::ScalarType type;
  bool requires_grad;
  int tag;

  std::int64_t bytes() const {
    return c10::multiply_integers(sizes) * static_cast<std::int64_t>(c10::elementSize(type));
  }
  void add_to(CallHash& hash) const {
    hash.add(sizes.size());
    for (const std::int64_t size : sizes) hash.add(static_cast<std::uint64_t>(size));
    hash.add(static_cast<std::uint64_t>(type));
    hash.add(requires_grad ? 1 : 0);
    hash.add(static_cast<std::uint64_t>(tag));
  }
  std::string text() const {
    return c10::str(c10::toString(type), c10::IntArrayRef(sizes), requires_grad ? ", requires_grad" : "",
                    tag == 0 ? "" : c10::str(", tag ", tag));
  }
};
using Parcels = std::vector<Parcel>;

std::int64_t bytes_of(const Parcels& parcels) {
  std::int64_t sum = 0;
  for (const Parcel& parcel : parcels) sum += parcel.bytes();
  return sum;
}

std::string text_of_messages(const Parcels& sends, const Parcels& receives, std::int64_t peer) {
  std::string all;
  const auto add = [&](const std::string& part) { all.append(all.empty() ? "" : ", ").append(part); };
  for (const Parcel& parcel : sends) add(c10::str("send(", parcel.text(), ") to rank ", peer));
  for (const Parcel& parcel : receives) add(c10::str("recv(", parcel.text(), ") from rank ", peer));
  return all;
}

// What one rank of a pair calls. Both know what goes which way, so that it is hashed as the lower one sees
// it.
class PeerCall : public GroupCall {
 public:
  PeerCall(const Parcels& sends, const Parcels& receives, std::int64_t self, std::int64_t peer,
           const CallSplits* bytes)
      : GroupCall(CallKind::send_recv), sends_(sends), receives_(receives), peer_(peer) {
    splits_ = bytes;
    for (const Parcels* parcels : {self < peer ? &sends : &receives, self < peer ? &receives : &sends}) {
      hash_.add(parcels->size());
      for (const Parcel& parcel : *parcels) parcel.add_to(hash_);
    }
  }
  std::string description() const override { return text_of_messages(sends_, receives_, peer_); }

 private:
  const Parcels& sends_;
  const Parcels& receives_;
  std::int64_t peer_;
};

void check_peer(int peer, const Group& group, const char* act) {
  group.process_group();  // members only
  TORCH_CHECK_VALUE(peer >= 0 && peer < group.size() && peer != group.rank(), "meshtorch: ", act, " rank ",
                    peer, " of a group of ", group.size(), " ranks, on its rank ", group.rank(),
                    "\n  do: name another rank of the group, from 0 to ", group.size() - 1);
}

// Runs `body`; an error that does not say which messages were waited for is told so.
template <class Body>
void naming(const std::string& messages, const Body& body) {
  try {
    body();
  } catch (c10::Error& error) {
    if (error.msg().find(messages) == std::string::npos) error.add_context("  the messages: " + messages);
    throw;
  }
}

// A wait that happens once, whoever asks.
class PeerArrival {
 public:
  PeerArrival(std::function<void()> wait, std::string messages)
      : wait_(std::move(wait)), messages_(std::move(messages)) {}
  void wait(Collective kind) {
    std::call_once(once_, [&] {
      const CommWait waiting(kind);
      try {
        naming(messages_, wait_);
      } catch (...) {
        error_ = std::current_exception();
      }
    });
    if (error_) std::rethrow_exception(error_);
  }

 private:
  std::function<void()> wait_;
  std::string messages_;
  std::once_flag once_;
  std::exception_ptr error_;
};

// What is under way with one peer: the results of its receives may be pending.
struct Underway {
  std::shared_ptr<PeerArrival> arrival;  // null if all is here
  std::vector<at::Tensor> received;
};

// All that goes between this rank and one other.
struct Peer {
  Parcels sends;
  Parcels receives;
  std::vector<at::Tensor> given{};       // the tensors of `sends`
  std::vector<std::size_t> positions{};  // of `receives` in the results
  std::vector<at::TensorOptions> options{};

  at::Device device() const { return given.empty() ? options[0].device() : given[0].device(); }
};

// Observers see each message as c10d's own.
void tell_observers(const char* name, const at::Tensor& tensor, const Group& group, int peer, int tag) {
  at::RecordFunction record(at::RecordScope::FUNCTION);
  if (!record.isActive()) return;
  const std::vector<c10::IValue> values{std::vector<at::Tensor>{tensor}, group.process_group(),
                                        static_cast<std::int64_t>(peer), static_cast<std::int64_t>(tag)};
  record.before(name, &values);
}

at::Tensor as_bytes(const at::Tensor& t) { return readable(t).reshape({-1}).view(at::kByte); }

at::Tensor from_bytes(const at::Tensor& bytes, const Parcel& parcel) {
  if (bytes.numel() == 0) return at::empty(parcel.sizes, bytes.options().dtype(parcel.type));
  return bytes.clone().view(parcel.type).view(parcel.sizes);
}

// The results of `receives`, where finish(i) gives the i-th when all has arrived.
template <class Finish>
Underway when_arrived(const Peer& peer, std::shared_ptr<PeerArrival> arrival, const Finish& finish) {
  Underway underway{std::move(arrival), {}};
  for (std::size_t i = 0; i < peer.receives.size(); ++i) {
    const auto get = [finish, i, arrived = underway.arrival] {
      if (arrived) arrived->wait(Collective::recv);
      const at::NoGradGuard no_grad;
      return finish(i);
    };
    underway.received.push_back(
        underway.arrival ? make_pending(peer.receives[i].sizes, peer.options[i].requires_grad(false), get)
                         : get());
  }
  return underway;
}

// Any backend: one exchange of bytes.
Underway exchange_bytes(const Peer& peer, const Group& pair, std::int64_t self, std::int64_t other) {
  const at::TensorOptions byte_options = at::TensorOptions(at::kByte).device(peer.device());
  std::vector<at::Tensor> parts{at::empty({0}, byte_options)};
  for (const at::Tensor& t : peer.given) parts.push_back(as_bytes(t));
  at::Tensor sent = at::cat(parts);
  at::Tensor received = at::empty({bytes_of(peer.receives)}, byte_options);
  const auto there = static_cast<std::size_t>(1 - pair.rank());
  Bytes send_bytes(2, 0);
  Bytes receive_bytes(2, 0);
  send_bytes[there] = sent.numel();
  receive_bytes[there] = received.numel();
  const CallSplits splits{send_bytes, receive_bytes, "bytes"};
  const PeerCall call(peer.sends, peer.receives, self, other, &splits);
  const DeclaredCall declared(call);
  c10::intrusive_ptr<c10d::Work> work;
  naming(call.text(), [&] {
    const CommWait waiting(peer.receives.empty() ? Collective::send : Collective::recv);
    work = pair.process_group()
               ->getBackend(peer.device().type())
               ->alltoall_base(received, sent, receive_bytes, send_bytes, c10d::AllToAllOptions());
  });
  auto arrival = std::make_shared<PeerArrival>([work] { work->wait(); }, call.text());
  if (work->isCompleted() && work->isSuccess()) {
    arrival->wait(Collective::recv);
    arrival = nullptr;
  }
  return when_arrived(peer, std::move(arrival), [received, parcels = peer.receives](std::size_t i) {
    const Parcels before(parcels.begin(), parcels.begin() + static_cast<std::ptrdiff_t>(i));
    return from_bytes(received.narrow(0, bytes_of(before), parcels[i].bytes()), parcels[i]);
  });
}

// Ranks that share memory: each shows what it sends, and takes what it is sent when it needs it.
Underway post_bytes(MemoryBackend& memory, const Peer& peer, const Group& pair, std::int64_t self,
                    std::int64_t other) {
  std::vector<at::Tensor> sent;
  for (const at::Tensor& t : peer.given) sent.push_back(readable(t));
  std::vector<at::Tensor> received;
  for (std::size_t i = 0; i < peer.receives.size(); ++i)
    received.push_back(at::empty(peer.receives[i].sizes, peer.options[i].requires_grad(false)));
  const PeerCall call(peer.sends, peer.receives, self, other, nullptr);
  const RunVector runs = wholes_of(sent);
  const auto fill = [&](char* room) { copy_stream(RunCursor(runs), room, bytes_of(runs)); };
  const auto there = static_cast<std::size_t>(1 - pair.rank());
  const auto take = [received, there](std::span<const char* const> shown) {
    const RunVector places = wholes_of(received);
    copy_stream(shown[there], RunCursor(places), bytes_of(places));
  };
  std::shared_ptr<NoticeBoard::Posting> posting;
  naming(call.text(), [&] {
    const CommWait waiting(peer.receives.empty() ? Collective::send : Collective::recv);
    posting = memory.post(
        Lane::message, call,
        {.bytes = static_cast<std::size_t>(std::max(bytes_of(peer.sends), bytes_of(peer.receives))),
         .fill = fill,
         .take = take,
         .words = [text = call.text()] { return text; }});
  });
  auto arrival = std::make_shared<PeerArrival>([posting] { posting->finish(); }, call.text());
  return when_arrived(peer, std::move(arrival), [received](std::size_t i) { return received[i]; });
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
using Peers = std::map<std::pair<std::int64_t, std::int64_t>, Peer>;

Peers by_pair(const std::vector<SendTo>& sends, const std::vector<ReceiveFrom>& receives,
              const Group& group) {
  Peers peers;
  const auto peer_at = [&](int rank) -> Peer& {
    return peers[std::minmax(group.ranks()[static_cast<std::size_t>(group.rank())],
                             group.ranks()[static_cast<std::size_t>(rank)])];
  };
  for (const SendTo& s : sends) {
    Peer& peer = peer_at(s.to);
    peer.sends.push_back({s.tensor.sizes().vec(), s.tensor.scalar_type(), s.tensor.requires_grad(), s.tag});
    peer.given.push_back(s.tensor.detach());
  }
  for (std::size_t i = 0; i < receives.size(); ++i) {
    const ReceiveFrom& r = receives[i];
    Peer& peer = peer_at(r.from);
    peer.receives.push_back(
        {r.sizes, c10::typeMetaToScalarType(r.options.dtype()), r.options.requires_grad(), r.tag});
    peer.positions.push_back(i);
    peer.options.push_back(r.options);
  }
  return peers;
}

void tell_observers_of(const Peer& peer, const Group& pair, int other) {
  for (std::size_t i = 0; i < peer.sends.size(); ++i)
    tell_observers("c10d::send", peer.given[i], pair, other, peer.sends[i].tag);
  for (const Parcel& parcel : peer.receives)
    tell_observers("c10d::recv_", at::empty(parcel.sizes, at::TensorOptions(parcel.type).device(at::kMeta)),
                   pair, other, parcel.tag);
}

// A zero that is there when all have arrived.
at::Tensor zero_after(const std::vector<std::shared_ptr<PeerArrival>>& arrivals) {
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
  std::vector<std::shared_ptr<PeerArrival>> arrivals;
  for (const auto& [ranks, peer] : peers) {
    const std::vector<std::int64_t> both{ranks.first, ranks.second};
    const std::int64_t other = both[0] == self ? both[1] : both[0];
    std::shared_ptr<const GroupImpl> pair;  // made at their first message, when both have come
    naming(text_of_messages(peer.sends, peer.receives, other), [&] { pair = context->group(both); });
    const Group both_ranks(pair);
    tell_observers_of(peer, both_ranks, static_cast<int>(other));
    MemoryBackend* memory = meet == Meet::when_used && peer.device().is_cpu()
                                ? memory_backend_of(*both_ranks.process_group())
                                : nullptr;
    const Underway underway = memory != nullptr ? post_bytes(*memory, peer, both_ranks, self, other)
                                                : exchange_bytes(peer, both_ranks, self, other);
    for (std::size_t i = 0; i < peer.positions.size(); ++i)
      results.received[peer.positions[i]] = underway.received[i];
    if (underway.arrival) arrivals.push_back(underway.arrival);
  }
  results.sent = zero_after(arrivals);
  return results;
}

}  // namespace meshtorch::internal
