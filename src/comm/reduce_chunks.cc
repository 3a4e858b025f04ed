// Reductions in two halves: in memory each rank shows the others their part and adds up its own when it needs
// it; other backends work by themselves.
#include "comm/reduce_chunks.h"

#include <ATen/ATen.h>
#include <ATen/record_function.h>

#include "comm/bulk_copy.h"
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
                              Collective kind, const GroupCall& call, NoticeBoard::Part part,
                              const Group& group) {
  std::shared_ptr<NoticeBoard::Posting> posting;
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

std::function<Tensors()> post_reduce_chunks(MemoryBackend& memory, const Tensors& terms, ReduceOp op,
                                            const Splits& dims, const Group& group) {
  const at::NoGradGuard no_grad;
  const int ranks = group.size();
  const int me = group.rank();
  PostedReduction reduction(terms, op, group);
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
  return post(memory, reduction, "c10d::reduce_scatter_tensor_coalesced_",
              Collective::reduce_scatter_tensor_coalesced, ReduceScatterCall(inputs, dims, op),
              {.bytes = shares.bytes * static_cast<std::size_t>(ranks - 1),
               .fill = fill,
               .take = take,
               .words = words},
              group);
}

std::function<Tensors()> post_reduce_wholes(MemoryBackend& memory, const Tensors& terms, ReduceOp op,
                                            const Group& group) {
  const at::NoGradGuard no_grad;
  PostedReduction reduction(terms, op, group);
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
  return post(memory, reduction, "c10d::allreduce_coalesced_", Collective::all_reduce_coalesced,
              AllReduceCall(reduction.inputs, op),
              {.bytes = bytes, .fill = fill, .take = take, .words = words}, group);
}

// Each rank reads all that a posted all-reduce of n ranks shows, n + 1 times its bytes with those that it
// writes. In slices, for which ranks wait for each other, it is 3 times whatever n.
constexpr int kMostRanksThatReadAll = 2;

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

std::function<Tensors()> start_reduce_wholes(const Tensors& terms, ReduceOp op, const Group& group) {
  if (terms.empty()) return [] { return Tensors(); };
  auto* memory = memory_for(group, terms[0]);
  if (memory != nullptr && group.size() <= kMostRanksThatReadAll)
    return post_reduce_wholes(*memory, terms, op, group);
  return [results = all_reduce_coalesced(terms, op, group)] {
    for (const at::Tensor& result : results) wait_pending(result);
    return results;
  };
}

}  // namespace meshtorch::internal
