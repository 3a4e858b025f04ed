// One step of a redistribution between ranks that share memory: boxes are copied, or reduced, straight from
// one local tensor into another.
#include <ATen/ATen.h>

#include <algorithm>
#include <numeric>

#include "backends/memory_backend.h"
#include "backends/pending.h"
#include "backends/wire.h"
#include "kernels/result_memory.h"
#include "kernels/tensor_runs.h"
#include "signature/tensor_signatures.h"
#include "transport/observed.h"
#include "transport/transport.h"

namespace meshtorch::internal {
namespace {

// The ranks agree on the layouts and the global shape, from which each knows what all the others do.
class StepSignature : public CollectiveSignature {
 public:
  StepSignature(CallKind kind, const PreparedStep& boxes, at::ScalarType type)
      : CollectiveSignature(kind), boxes_(boxes), type_(type) {
    facts_ = {static_cast<int>(type), -1, {boxes.shape.data(), boxes.shape.size()}};
    hash_.add(static_cast<std::uint64_t>(type));
    hash_.add(boxes.shape.size());
    for (const std::int64_t size : boxes.shape) hash_.add(static_cast<std::uint64_t>(size));
    hash_.add(static_cast<std::uint64_t>(boxes.step.op));
    for (const Placements* placements : {&boxes.step.before, &boxes.step.after}) {
      add_placements(hash_, *placements);
    }
  }

 private:
  std::string arguments() const override {
    return c10::str(c10::toString(type_), c10::IntArrayRef(boxes_.shape), " from ",
                    to_string(boxes_.step.before), " to ", to_string(boxes_.step.after));
  }
  const PreparedStep& boxes_;
  at::ScalarType type_;
};

// Memory whose rows can be read.
at::Tensor readable_in_rows(const at::Tensor& t) {
  wait_pending(t);
  if (t.is_conj() || t.is_neg()) return readable(t);
  const bool has_rows = t.is_contiguous() || (t.dim() > 0 && t.stride(-1) == 1);
  return has_rows ? t : t.detach().contiguous();
}

// Runs of boxes, one list for each rank.
class BoxRuns {
 public:
  // `side` says which of a piece's boxes lie in `t`.
  BoxRuns(const at::Tensor& t, std::span<const std::vector<Piece>> pieces, std::vector<Range> Piece::* side) {
    c10::SmallVector<std::size_t, 8> ends;
    for (const std::vector<Piece>& of_rank : pieces) {
      for (const Piece& piece : of_rank) append_box(runs_, t, piece.*side);
      ends.push_back(runs_.size());
    }
    const RunList all(runs_.data(), runs_.size());
    std::size_t begin = 0;
    for (const std::size_t end : ends) {
      lists_.push_back(all.subspan(begin, end - begin));
      begin = end;
    }
  }
  BoxRuns(const BoxRuns&) = delete;
  BoxRuns& operator=(const BoxRuns&) = delete;
  std::span<const RunList> lists() const { return {lists_.data(), lists_.size()}; }

 private:
  RunVector runs_;
  c10::SmallVector<RunList, 8> lists_;
};

std::span<const std::vector<Piece>> mine_of(const PreparedStep& boxes) {
  return {&boxes.received[boxes.me], 1};
}

// What observers are shown of that many elements that are sent from where they lie.
at::Tensor shape_of_sent(const at::Tensor& local, std::int64_t count) {
  return at::empty({count}, local.options().device(at::kMeta));
}

}  // namespace

at::Tensor SharedMemoryTransport::gather_boxes(const PreparedStep& boxes, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  const at::Tensor input = readable_in_rows(local);
  at::Tensor result = empty_result(boxes.result, local.options());
  const BoxRuns mine(input, mine_of(boxes), &Piece::source);
  const BoxRuns into(result, boxes.received, &Piece::target);
  observed(
      "c10d::_allgather_base_",
      [&] { return std::vector<c10::IValue>{result, input, group_.process_group()}; },
      [&] {
        memory_.gather_parts(StepSignature(CallKind::all_gather_into_tensor, boxes, local.scalar_type()),
                             mine.lists()[0], into.lists());
      });
  return result;
}

at::Tensor SharedMemoryTransport::exchange_boxes(const PreparedStep& boxes, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  const at::Tensor input = readable_in_rows(local);
  at::Tensor result = empty_result(boxes.result, local.options());
  const BoxRuns parts(input, boxes.sent, &Piece::source);
  const BoxRuns into(result, boxes.received, &Piece::target);
  const auto shown = [&] {
    std::vector<std::int64_t> sends;
    std::vector<std::int64_t> receives;
    for (const auto& pieces : boxes.sent) sends.push_back(element_count(pieces));
    for (const auto& pieces : boxes.received) receives.push_back(element_count(pieces));
    const std::int64_t count = std::accumulate(sends.begin(), sends.end(), std::int64_t{0});
    return std::vector<c10::IValue>{result, shape_of_sent(local, count), group_.process_group(), receives,
                                    sends};
  };
  observed("c10d::alltoall_base_", shown, [&] {
    memory_.exchange_parts(StepSignature(CallKind::all_to_all_single, boxes, local.scalar_type()),
                           parts.lists(), into.lists());
  });
  return result;
}

at::Tensor SharedMemoryTransport::reduce_boxes(const PreparedStep& boxes, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  const WireReduction wire(boxes.step.op, {local}, group_.size(), /*backend_averages=*/true);
  const at::Tensor input = wire.encode(readable_in_rows(local));
  std::vector<std::int64_t> sizes = boxes.result;  // an encoded element may be more than one
  for (std::int64_t d = local.dim(); d < input.dim(); ++d) sizes.push_back(input.size(d));
  at::Tensor result = empty_result(sizes, input.options());
  const BoxRuns parts(input, boxes.sent, &Piece::source);
  const BoxRuns out(result, mine_of(boxes), &Piece::target);
  const auto shown = [&] {
    std::int64_t longest = 0;
    for (const auto& pieces : boxes.sent) longest = std::max(longest, element_count(pieces));
    return std::vector<c10::IValue>{result, shape_of_sent(local, longest * group_.size()),
                                    group_.process_group()};
  };
  observed("c10d::_reduce_scatter_base_", shown, [&] {
    memory_.reduce_parts(StepSignature(CallKind::reduce_scatter_tensor, boxes, local.scalar_type()),
                         parts.lists(), out.lists()[0],
                         {input.scalar_type(), static_cast<ReduceOp>(wire.op())});
  });
  return wire.decode(result);
}

}  // namespace meshtorch::internal
