// Gathering chunks: in memory each rank shows its chunks and takes those of the others when it needs them;
// other backends send one padded buffer.
#include "comm/gather_chunks.h"
#include "comm/agreement.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "comm/bulk_copy.h"
#include "comm/collectives_in_memory.h"
#include "comm/comm_record.h"
#include "comm/observed.h"
#include "comm/tensor_calls.h"
#include "comm/tensor_runs.h"
#include "comm/wire.h"
#include "core/shard.h"

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

std::function<void()> post_gather_chunks(MemoryBackend& memory, const Tensors& chunks, const Tensors& wholes,
                                         const Splits& dims, const Group& group) {
  const at::NoGradGuard no_grad;
  const int ranks = group.size();
  const int me = group.rank();
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
    return GatherChunksCall(wholes, dims).description();
  };
  std::shared_ptr<NoticeBoard::Posting> posting;
  observed(
      "c10d::_allgather_base_",
      [&] { return std::vector<c10::IValue>{wholes, inputs, group.process_group()}; },
      [&] {
        // The first rank's chunks are the largest.
        posting = memory.post(Lane::gather, GatherChunksCall(wholes, dims),
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

}  // namespace

GatherChunksCall::GatherChunksCall(at::TensorList wholes, at::IntArrayRef dims)
    : GroupCall(CallKind::all_gather_into_tensor), wholes_(wholes), dims_(dims) {
  for (const std::int64_t dim : dims) hash_.add(static_cast<std::uint64_t>(dim));
  for (const at::Tensor& whole : wholes) {
    hash_.add(static_cast<std::uint64_t>(whole.scalar_type()));
    hash_.add(static_cast<std::uint64_t>(whole.dim()));
    for (const std::int64_t size : whole.sizes()) hash_.add(static_cast<std::uint64_t>(size));
  }
}

std::string GatherChunksCall::arguments() const {
  return c10::str("chunks of ", describe(wholes_), " along dims ", dims_);
}

std::function<void()> start_gather_chunks(const Tensors& chunks, const Tensors& wholes, const Splits& dims,
                                          const Group& group) {
  if (wholes.empty()) return [] {};
  if (auto* memory = memory_for(group, wholes[0]))
    return post_gather_chunks(*memory, chunks, wholes, dims, group);
  const at::NoGradGuard no_grad;
  const ChunkBuffer places(wholes, dims, group.size());
  at::Tensor mine = at::empty({places.bytes}, wholes[0].options().dtype(at::kByte));
  for (std::size_t i = 0; i < chunks.size(); ++i) {
    if (chunks[i].numel() > 0) bytes_at(mine, places.offsets[i], chunks[i]).copy_(chunks[i]);
  }
  at::Tensor all = at::empty({places.bytes * group.size()}, mine.options());
  const GatherChunksCall call(wholes, dims);
  const AgreedCall agreed(call, group);
  const auto work = group.process_group()->all_gather_single(all, mine, c10d::AllgatherOptions());
  return [=, ranks = group.size()] {
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

}  // namespace meshtorch::internal
