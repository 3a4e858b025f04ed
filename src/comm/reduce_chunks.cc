// Reducing chunks: in memory each rank shows the others their chunks and adds up its own when it needs them;
// other backends work by themselves.
#include "comm/reduce_chunks.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "comm/collectives_in_memory.h"
#include "comm/comm_record.h"
#include "comm/observed.h"
#include "comm/parts.h"
#include "comm/pending.h"
#include "comm/reduce.h"
#include "comm/result_memory.h"
#include "comm/tensor_runs.h"
#include "comm/wire.h"

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

Tensors pieces_of(const at::Tensor& flat, const Tensors& like, const Splits& dims, int ranks, int rank) {
  Tensors pieces;
  std::int64_t begin = 0;
  for (std::size_t i = 0; i < like.size(); ++i) {
    const auto shape = sizes_with(like[i], dims[i], chunk(like[i].size(dims[i]), ranks, rank).size);
    at::Tensor piece = at::empty({0}, like[i].options());
    piece.set_(flat.storage(), begin, shape);
    begin += piece.numel();
    pieces.push_back(std::move(piece));
  }
  return pieces;
}

std::function<Tensors()> post_reduce_chunks(MemoryBackend& memory, const Tensors& terms, ReduceOp op,
                                            const Splits& dims, const Group& group) {
  const at::NoGradGuard no_grad;
  const int ranks = group.size();
  const int me = group.rank();
  const WireReduction wire(op, terms, ranks, /*backend_averages=*/true);
  Tensors inputs;
  for (const at::Tensor& t : terms) inputs.push_back(wire.encode(readable(t)));
  const at::ScalarType type = inputs[0].scalar_type();
  const RunVector mine = chunks_for(inputs, dims, ranks, me);
  const std::size_t bytes = bytes_of(mine);
  const at::Tensor sum = empty_result({static_cast<std::int64_t>(bytes / c10::elementSize(type))},
                                      inputs[0].options().requires_grad(false));
  const Tensors outputs = pieces_of(sum, inputs, dims, ranks, me);
  copy_stream(RunCursor(mine), whole_of(sum).data, bytes);
  // The first rank's chunks are the largest.
  const Shares shares{(bytes_of(chunks_for(inputs, dims, ranks, 0)) + kLine - 1) / kLine * kLine};
  const auto fill = [&](char* room) {
    for (int r = 0; r < ranks; ++r) {
      if (r == me) continue;
      const RunVector theirs = chunks_for(inputs, dims, ranks, r);
      copy_stream(RunCursor(theirs), room + shares.begin(me, r), bytes_of(theirs));
    }
  };
  const auto take = [=](std::span<const char* const> shown) {
    std::vector<const char*> in_order;
    for (int r = 0; r < ranks; ++r)
      in_order.push_back(r == me ? whole_of(sum).data
                                 : shown[static_cast<std::size_t>(r)] + shares.begin(r, me));
    reduce_bytes(whole_of(sum).data, in_order, bytes, type, static_cast<ReduceOp>(wire.op()));
  };
  const CallOrigin* origin = CallOrigin::current();
  const auto words = [=, name = origin == nullptr ? std::string() : " for " + origin->name()] {
    return c10::str("reduce_scatter_tensor(to ", describe(outputs), " along dims ", dims, ", ", to_string(op),
                    ")", name);
  };
  std::shared_ptr<NoticeBoard::Posting> posting;
  observed(
      "c10d::reduce_scatter_tensor_coalesced_",
      [&] { return std::vector<c10::IValue>{outputs, inputs, group.process_group()}; },
      [&] {
        posting = memory.post(Lane::reduce, ReduceScatterCall(inputs, dims, op),
                              {.bytes = shares.bytes * static_cast<std::size_t>(ranks - 1),
                               .fill = fill,
                               .take = take,
                               .words = words});
      });
  return [posting, outputs, wire, alive = group.process_group()] {
    const at::NoGradGuard without_graph;
    const CommWait waiting(Collective::reduce_scatter_tensor_coalesced);
    RECORD_USER_SCOPE("meshtorch::wait_reduce_scatter_tensor_coalesced");
    posting->finish();
    Tensors results;
    for (const at::Tensor& out : outputs) results.push_back(wire.decode(out));
    return results;
  };
}

}  // namespace

std::function<Tensors()> start_reduce_chunks(const Tensors& terms, ReduceOp op, const Splits& dims,
                                             const Group& group) {
  if (terms.empty()) return [] { return Tensors(); };
  if (auto* memory = memory_for(group, terms[0])) return post_reduce_chunks(*memory, terms, op, dims, group);
  return [results = reduce_scatter_tensor_coalesced(terms, op, dims, group)] {
    for (const at::Tensor& result : results) wait_pending(result);
    return results;
  };
}

}  // namespace meshtorch::internal
