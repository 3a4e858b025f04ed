// Collectives of several tensors, and messages, of ranks that share memory: each rank shows its part and goes
// on; it takes those of the others when it needs the result.
#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include <algorithm>

#include "backends/memory_backend.h"
#include "backends/pending.h"
#include "backends/wire.h"
#include "core/shard.h"
#include "kernels/bulk_copy.h"
#include "kernels/parts.h"
#include "kernels/reduce.h"
#include "kernels/result_memory.h"
#include "kernels/tensor_runs.h"
#include "signature/tensor_signatures.h"
#include "transport/arriving_messages.h"
#include "transport/comm_wait.h"
#include "transport/observed.h"
#include "transport/transport.h"

namespace meshtorch::internal {
namespace {

constexpr std::size_t kLine = 64;

// A room holds a share for each rank but the one that shows it.
struct Shares {
  std::size_t bytes;
  std::size_t begin(int shown_by, int meant_for) const {
    return bytes * static_cast<std::size_t>(meant_for < shown_by ? meant_for : meant_for - 1);
  }
};

// Tensors that lie one after the other in one memory.
Tensors pieces_of(const at::Tensor& flat, const std::vector<Shape>& shapes) {
  Tensors pieces;
  std::int64_t begin = 0;
  for (const Shape& shape : shapes) {
    at::Tensor piece = at::empty({0}, flat.options());
    piece.set_(flat.storage(), begin, shape);
    begin += piece.numel();
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

// A reduction of tensors of one type whose results lie together.
struct PostedReduction {
  PostedReduction(const Tensors& terms, ReduceOp op, const Group& group)
      : wire(op, terms, group.size(), /*backend_averages=*/true) {
    for (const at::Tensor& t : terms) inputs.push_back(wire.encode(readable(t)));
    type = inputs[0].scalar_type();
  }
  void make_room(const std::vector<Shape>& shapes) {
    std::int64_t elements = 0;
    for (const Shape& shape : shapes) elements += c10::multiply_integers(shape);
    sum = empty_result({elements}, inputs[0].options().requires_grad(false));
    outputs = pieces_of(sum, shapes);
  }
  ReduceOp op() const { return static_cast<ReduceOp>(wire.op()); }

  WireReduction wire;
  Tensors inputs;
  at::ScalarType type;
  at::Tensor sum;
  Tensors outputs;
};

// Shows this rank's part, which observers see as a call of that name; what it returns takes the others'.
std::function<Tensors()> post(MemoryBackend& memory, const PostedReduction& reduction, const char* name,
                              Collective kind, const CollectiveSignature& call, PostedCollectives::Part part,
                              const Group& group) {
  std::shared_ptr<PostedCollectives::Posting> posting;
  observed(
      name,
      [&] { return std::vector<c10::IValue>{reduction.outputs, reduction.inputs, group.process_group()}; },
      [&] { posting = memory.post(Lane::reduce, call, std::move(part)); });
  return [posting, kind, outputs = reduction.outputs, wire = reduction.wire] {
    const at::NoGradGuard without_graph;
    const CommWait waiting(kind);
    RECORD_USER_SCOPE(c10::str("meshtorch::wait_", to_string(kind)));
    posting->finish();
    Tensors results;
    for (const at::Tensor& out : outputs) results.push_back(wire.decode(out));
    return results;
  };
}

std::string origin_words() {
  const CallOrigin* origin = CallOrigin::current();
  return origin == nullptr ? std::string() : " for " + origin->name();
}

// Each rank reads all that a posted all-reduce of n ranks shows, n + 1 times its bytes with those that it
// writes. In slices, for which ranks wait for each other, it is 3 times whatever n.
constexpr int kMaxRanksThatReadAll = 2;

}  // namespace

std::function<void()> SharedMemoryTransport::start_gather_chunks(const Tensors& chunks, const Tensors& wholes,
                                                                 const Splits& dims) const {
  const at::NoGradGuard no_grad;
  const int ranks = group_.size();
  const int me = group_.rank();
  Tensors inputs;
  for (const at::Tensor& t : chunks) inputs.push_back(readable(t));
  const RunVector mine = wholes_of(inputs);
  const auto fill = [&](char* room) { copy_bulk_twice(mine, room, chunks_for(wholes, dims, ranks, me)); };
  const auto take = [=](std::span<const char* const> shown) {
    for (int step = 1; step < ranks; ++step) {
      const int r = (me + step) % ranks;  // not all from one rank at a time
      const RunVector places = chunks_for(wholes, dims, ranks, r);
      copy_bulk(shown[static_cast<std::size_t>(r)], places);
    }
  };
  const CallOrigin* origin = CallOrigin::current();
  const auto words = [=, name = origin == nullptr ? std::string() : origin->name()] {
    const CallOrigin same(name);
    return GatherChunksSignature(wholes, dims).description();
  };
  std::shared_ptr<PostedCollectives::Posting> posting;
  observed(
      "c10d::_allgather_base_",
      [&] { return std::vector<c10::IValue>{wholes, inputs, group_.process_group()}; },
      [&] {
        // The first rank's chunks are the largest.
        posting = memory_.post(Lane::gather, GatherChunksSignature(wholes, dims),
                               {.bytes = bytes_of(chunks_for(wholes, dims, ranks, 0)),
                                .fill = fill,
                                .take = take,
                                .words = words});
      });
  return [posting] {
    const CommWait waiting(Collective::all_gather_into_tensor);
    RECORD_USER_SCOPE("meshtorch::wait_all_gather_into_tensor");
    posting->finish();
  };
}

std::function<Tensors()> SharedMemoryTransport::start_reduce_chunks(const Tensors& terms, ReduceOp op,
                                                                    const Splits& dims) const {
  const at::NoGradGuard no_grad;
  const int ranks = group_.size();
  const int me = group_.rank();
  PostedReduction reduction(terms, op, group_);
  const Tensors& inputs = reduction.inputs;
  std::vector<Shape> shapes;
  for (std::size_t i = 0; i < inputs.size(); ++i)
    shapes.push_back(sizes_with(inputs[i], dims[i], chunk(inputs[i].size(dims[i]), ranks, me).size));
  reduction.make_room(shapes);
  const RunVector mine = chunks_for(inputs, dims, ranks, me);
  const std::size_t bytes = bytes_of(mine);
  copy_bulk(mine, whole_of(reduction.sum).data);
  // The first rank's chunks are the largest.
  const Shares shares{(bytes_of(chunks_for(inputs, dims, ranks, 0)) + kLine - 1) / kLine * kLine};
  const auto fill = [&](char* room) {
    for (int r = 0; r < ranks; ++r) {
      if (r == me) continue;
      const RunVector theirs = chunks_for(inputs, dims, ranks, r);
      copy_bulk(theirs, room + shares.begin(me, r));
    }
  };
  const auto take = [=, sum = reduction.sum, type = reduction.type,
                     as = reduction.op()](std::span<const char* const> shown) {
    std::vector<const char*> in_order;
    for (int r = 0; r < ranks; ++r)
      in_order.push_back(r == me ? whole_of(sum).data
                                 : shown[static_cast<std::size_t>(r)] + shares.begin(r, me));
    reduce_bytes(whole_of(sum).data, in_order, bytes, type, as);
  };
  const auto words = [=, outputs = reduction.outputs, name = origin_words()] {
    return c10::str("reduce_scatter_tensor(to ", describe(outputs), " along dims ", dims, ", ", to_string(op),
                    ")", name);
  };
  return post(memory_, reduction, "c10d::reduce_scatter_tensor_coalesced_",
              Collective::reduce_scatter_tensor_coalesced, ReduceScatterSignature(inputs, dims, op),
              {.bytes = shares.bytes * static_cast<std::size_t>(ranks - 1),
               .fill = fill,
               .take = take,
               .words = words},
              group_);
}

std::function<Tensors()> SharedMemoryTransport::start_reduce_wholes(const Tensors& terms, ReduceOp op) const {
  if (group_.size() > kMaxRanksThatReadAll)
    return [results = all_reduce_coalesced(terms, op)] { return results; };
  const at::NoGradGuard no_grad;
  PostedReduction reduction(terms, op, group_);
  std::vector<Shape> shapes;
  for (const at::Tensor& input : reduction.inputs) shapes.push_back(input.sizes().vec());
  reduction.make_room(shapes);
  const RunVector mine = wholes_of(reduction.inputs);
  const std::size_t bytes = bytes_of(mine);
  const auto fill = [&](char* room) { copy_bulk(mine, room); };
  const auto take = [bytes, sum = reduction.sum, type = reduction.type,
                     as = reduction.op()](std::span<const char* const> shown) {
    reduce_bytes(whole_of(sum).data, shown, bytes, type, as);
  };
  const auto words = [op, outputs = reduction.outputs, name = origin_words()] {
    return c10::str("all_reduce(", describe(outputs), ", ", to_string(op), ")", name);
  };
  return post(memory_, reduction, "c10d::allreduce_coalesced_", Collective::all_reduce_coalesced,
              AllReduceSignature(reduction.inputs, op),
              {.bytes = bytes, .fill = fill, .take = take, .words = words}, group_);
}

// Each rank shows what it sends, and takes what it is sent when it needs it.
MessagesUnderway SharedMemoryTransport::exchange_messages(const PeerMessages& peer, std::int64_t self,
                                                          std::int64_t other) const {
  std::vector<at::Tensor> sent;
  for (const at::Tensor& t : peer.given) sent.push_back(readable(t));
  std::vector<at::Tensor> received;
  for (std::size_t i = 0; i < peer.receives.size(); ++i)
    received.push_back(at::empty(peer.receives[i].sizes, peer.options[i].requires_grad(false)));
  const PeerSignature call(peer.sends, peer.receives, self, other, nullptr);
  const RunVector runs = wholes_of(sent);
  const auto fill = [&](char* room) { copy_stream(RunCursor(runs), room, bytes_of(runs)); };
  const auto there = static_cast<std::size_t>(1 - group_.rank());
  const auto take = [received, there](std::span<const char* const> shown) {
    const RunVector places = wholes_of(received);
    copy_stream(shown[there], RunCursor(places), bytes_of(places));
  };
  std::shared_ptr<PostedCollectives::Posting> posting;
  naming(call.text(), [&] {
    const CommWait waiting(peer.receives.empty() ? Collective::send : Collective::recv);
    posting = memory_.post(
        Lane::message, call,
        {.bytes = static_cast<std::size_t>(std::max(bytes_in(peer.sends), bytes_in(peer.receives))),
         .fill = fill,
         .take = take,
         .words = [text = call.text()] { return text; }});
  });
  auto arrival = std::make_shared<MessageWait>([posting] { posting->finish(); }, call.text());
  return when_arrived(peer, std::move(arrival), [received](std::size_t i) { return received[i]; });
}

}  // namespace meshtorch::internal
