// Collectives of several tensors, and messages, by c10d: one padded buffer.
#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <algorithm>

#include "backends/pending.h"
#include "backends/wire.h"
#include "core/shard.h"
#include "signature/tensor_signatures.h"
#include "transport/arriving_messages.h"
#include "transport/comm_wait.h"
#include "transport/transport.h"
#include "world/agree.h"

namespace meshtorch::internal {
namespace {

// Where the chunks of one rank lie in its buffer: each has the room of the largest chunk of its tensor.
struct ChunkBuffer {
  ChunkBuffer(const Tensors& wholes, const Splits& dims, int ranks) {
    std::int64_t align = 1;
    for (const at::Tensor& whole : wholes)
      align = std::max(align, static_cast<std::int64_t>(whole.element_size()));
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      offsets.push_back(bytes);
      const at::Tensor& whole = wholes[i];
      const std::int64_t rows = whole.size(dims[i]);
      const std::int64_t row_bytes = rows == 0 ? 0 : static_cast<std::int64_t>(whole.nbytes()) / rows;
      bytes += (chunk(rows, ranks, 0).size * row_bytes + align - 1) / align * align;
    }
  }
  std::vector<std::int64_t> offsets;
  std::int64_t bytes = 0;
};

at::Tensor bytes_at(const at::Tensor& buffer, std::int64_t offset, const at::Tensor& like) {
  return buffer.narrow(0, offset, static_cast<std::int64_t>(like.nbytes()))
      .view(like.scalar_type())
      .view(like.sizes());
}

at::Tensor as_bytes(const at::Tensor& t) { return readable(t).reshape({-1}).view(at::kByte); }

at::Tensor from_bytes(const at::Tensor& bytes, const Message& message) {
  if (bytes.numel() == 0) return at::empty(message.sizes, bytes.options().dtype(message.type));
  return bytes.clone().view(message.type).view(message.sizes);
}

std::function<Tensors()> when_used(Tensors results) {
  return [results = std::move(results)] {
    for (const at::Tensor& result : results) wait_pending(result);
    return results;
  };
}

}  // namespace

std::function<void()> PackedTransport::start_gather_chunks(const Tensors& chunks, const Tensors& wholes,
                                                           const Splits& dims) const {
  const at::NoGradGuard no_grad;
  const ChunkBuffer places(wholes, dims, group_.size());
  at::Tensor mine = at::empty({places.bytes}, wholes[0].options().dtype(at::kByte));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].numel() > 0) bytes_at(mine, places.offsets[i], chunks[i]).copy_(chunks[i]);
  }
  at::Tensor all = at::empty({places.bytes * group_.size()}, mine.options());
  const GatherChunksSignature call(wholes, dims);
  const AgreementScope agreed(call, group_);
  const auto work = group_.process_group()->all_gather_single(all, mine, c10d::AllgatherOptions());
  return [=, ranks = group_.size()] {
    const at::NoGradGuard without_graph;
    {
      const CommWait waiting(Collective::all_gather_into_tensor);
      RECORD_USER_SCOPE("meshtorch::wait_all_gather_into_tensor");
      work->wait();
    }
    for (std::size_t i = 0; i < wholes.size(); ++i) {
      for (int rank = 0; rank < ranks; ++rank) {
        const Range range = chunk(wholes[i].size(dims[i]), ranks, rank);
        const at::Tensor part = wholes[i].narrow(dims[i], range.begin, range.size);
        if (part.numel() > 0) part.copy_(bytes_at(all, rank * places.bytes + places.offsets[i], part));
      }
    }
  };
}

std::function<Tensors()> PackedTransport::start_reduce_chunks(const Tensors& terms, ReduceOp op,
                                                              const Splits& dims) const {
  return when_used(reduce_scatter_coalesced(terms, op, dims));
}

std::function<Tensors()> PackedTransport::start_reduce_wholes(const Tensors& terms, ReduceOp op) const {
  return when_used(all_reduce_coalesced(terms, op));
}

// One exchange of bytes.
MessagesUnderway PackedTransport::exchange_messages(const PeerMessages& peer, std::int64_t self,
                                                    std::int64_t other) const {
  const at::TensorOptions byte_options = at::TensorOptions(at::kByte).device(peer.device());
  std::vector<at::Tensor> parts{at::empty({0}, byte_options)};
  for (const at::Tensor& t : peer.given) parts.push_back(as_bytes(t));
  at::Tensor sent = at::cat(parts);
  at::Tensor received = at::empty({bytes_in(peer.receives)}, byte_options);
  const auto there = static_cast<std::size_t>(1 - group_.rank());
  Splits send_bytes(2, 0);
  Splits receive_bytes(2, 0);
  send_bytes[there] = sent.numel();
  receive_bytes[there] = received.numel();
  const CallSplits splits{send_bytes, receive_bytes, "bytes"};
  const PeerSignature call(peer.sends, peer.receives, self, other, &splits);
  const ScopedCallDescription declared(call);
  c10::intrusive_ptr<c10d::Work> work;
  naming(call.text(), [&] {
    const CommWait waiting(peer.receives.empty() ? Collective::send : Collective::recv);
    work = group_.process_group()
               ->getBackend(peer.device().type())
               ->alltoall_base(received, sent, receive_bytes, send_bytes, c10d::AllToAllOptions());
  });
  auto arrival = std::make_shared<MessageWait>([work] { work->wait(); }, call.text());
  if (work->isCompleted() && work->isSuccess()) {
    arrival->wait(Collective::recv);
    arrival = nullptr;
  }
  return when_arrived(peer, std::move(arrival), [received, messages = peer.receives](std::size_t i) {
    const Messages before(messages.begin(), messages.begin() + static_cast<std::ptrdiff_t>(i));
    return from_bytes(received.narrow(0, bytes_in(before), messages[i].bytes()), messages[i]);
  });
}

}  // namespace meshtorch::internal
