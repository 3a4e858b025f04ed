// One step of a redistribution by c10d: boxes are packed, sent and unpacked.
#include <ATen/ATen.h>

#include <algorithm>
#include <functional>
#include <numeric>

#include "transport/transport.h"

namespace meshtorch::internal {
namespace {

at::Tensor box(const at::Tensor& t, const std::vector<Range>& ranges) {
  at::Tensor part = t;
  for (std::size_t dim = 0; dim < ranges.size(); ++dim) {
    const auto d = static_cast<std::int64_t>(dim);
    if (ranges[dim].size != part.size(d)) part = part.narrow(d, ranges[dim].begin, ranges[dim].size);
  }
  return part;
}

// The boxes of `t` that `parts` name as sources, one after the other in one dim.
at::Tensor pack(const at::Tensor& t, const std::vector<Piece>& parts) {
  if (parts.size() == 1) return box(t, parts[0].source).reshape({-1});
  std::vector<at::Tensor> flat;
  for (const Piece& piece : parts) flat.push_back(box(t, piece.source).reshape({-1}));
  return flat.empty() ? t.reshape({-1}).narrow(0, 0, 0) : at::cat(flat);
}

void unpack(const at::Tensor& packed, const std::vector<Piece>& parts, const at::Tensor& into) {
  std::int64_t offset = 0;
  for (const Piece& piece : parts) {
    const at::Tensor target = box(into, piece.target);
    target.copy_(packed.narrow(0, offset, target.numel()).view(target.sizes()));
    offset += target.numel();
  }
}

}  // namespace

at::Tensor PackedTransport::gather_boxes(const PreparedStep& step, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  if (const std::int64_t dim = step.concatenated_dim; dim >= 0) {
    Splits sizes;
    for (const Shape& part : step.before) sizes.push_back(part[static_cast<std::size_t>(dim)]);
    return all_gather(local, dim, sizes);
  }
  Splits counts;
  for (const Shape& part : step.before)
    counts.push_back(std::accumulate(part.begin(), part.end(), std::int64_t{1}, std::multiplies<>()));
  const at::Tensor packed = all_gather(local.reshape({-1}), 0, counts);
  at::Tensor whole = at::empty(step.result, local.options());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < counts.size(); ++i) {
    const at::Tensor part = packed.narrow(0, offset, counts[i]).view(step.before[i]);
    for (const Piece& piece : step.received[i]) box(whole, piece.target).copy_(box(part, piece.source));
    offset += counts[i];
  }
  return whole;
}

at::Tensor PackedTransport::exchange_boxes(const PreparedStep& step, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> sent;
  Splits send_counts;
  Splits receive_counts;
  for (std::size_t i = 0; i < step.sent.size(); ++i) {
    sent.push_back(pack(local, step.sent[i]));
    send_counts.push_back(sent.back().numel());
    receive_counts.push_back(element_count(step.received[i]));
  }
  const std::int64_t count = std::accumulate(receive_counts.begin(), receive_counts.end(), std::int64_t{0});
  const at::Tensor packed = all_to_all(at::cat(sent), receive_counts, send_counts, {count});
  at::Tensor result = at::empty(step.result, local.options());
  std::int64_t offset = 0;
  for (std::size_t i = 0; i < receive_counts.size(); ++i) {
    unpack(packed.narrow(0, offset, receive_counts[i]), step.received[i], result);
    offset += receive_counts[i];
  }
  return result;
}

at::Tensor PackedTransport::reduce_boxes(const PreparedStep& step, const at::Tensor& local) const {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> terms;
  std::int64_t largest = 0;
  for (const std::vector<Piece>& to_member : step.sent) {
    terms.push_back(pack(local, to_member));
    largest = std::max(largest, terms.back().numel());
  }
  for (at::Tensor& term : terms) {
    if (term.numel() < largest) term = at::cat({term, term.new_zeros({largest - term.numel()})});
  }
  const at::Tensor packed = this->reduce_scatter(at::cat(terms), step.step.op, 0);
  const std::vector<Piece>& mine = step.received[step.me];
  if (mine.size() == 1) return packed.narrow(0, 0, element_count(mine)).view(step.result);
  at::Tensor result = at::empty(step.result, local.options());
  unpack(packed, mine, result);
  return result;
}

}  // namespace meshtorch::internal
