// What each rank of a simulated mesh holds of a tensor.
#include "prove/pieces.h"

#include <ATen/ATen.h>
#include <ATen/CPUGeneratorImpl.h>

#include <algorithm>
#include <limits>

#include "kernels/reduce.h"

namespace meshtorch::internal {
namespace {

// The terms of one axis.
Pieces terms_of(const at::Tensor& whole, ReduceOp op, std::int64_t extent, std::uint64_t seed) {
  Pieces terms;
  if (op == ReduceOp::min || op == ReduceOp::max || op == ReduceOp::product) {
    at::Tensor last = whole;
    for (std::int64_t i = 0; i + 1 < extent; ++i) {
      const at::Tensor random = random_like(whole, seed + static_cast<std::uint64_t>(i));
      const bool has_sign = whole.is_floating_point() || at::isSignedType(whole.scalar_type());
      terms.push_back(op == ReduceOp::min   ? at::maximum(whole, random)
                      : op == ReduceOp::max ? at::minimum(whole, random)
                      : has_sign            ? at::ones_like(whole).masked_fill(at::real(random).gt(0), -1)
                                            : at::ones_like(whole));
      if (op == ReduceOp::product) last = last * terms.back();  // each is its own inverse
    }
    terms.push_back(last.clone());
    return terms;
  }
  TORCH_INTERNAL_ASSERT(op == ReduceOp::sum || op == ReduceOp::avg, "no terms are made for ", to_string(op));
  at::Tensor last = op == ReduceOp::avg ? whole * extent : whole.clone();
  for (std::int64_t i = 0; i + 1 < extent; ++i) {
    terms.push_back(random_like(whole, seed + static_cast<std::uint64_t>(i)));
    last = last - terms.back();
  }
  terms.push_back(last);
  return terms;
}

// The indices of a dim that rank `index` of an axis holds.
at::Tensor held_by(std::int64_t size, const Placement& p, std::int64_t extent, std::int64_t index) {
  std::vector<at::Tensor> runs{at::empty({0}, at::kLong)};
  for (const Range& run : split({{0, size}}, p, extent, index))
    runs.push_back(at::arange(run.begin, run.end(), at::kLong));
  return at::cat(runs);
}

void split_axes(const at::Tensor& part, const Placements& placements, const Shape& mesh, std::size_t axis,
                std::uint64_t seed, Pieces& pieces) {
  if (axis == mesh.size()) {
    pieces.push_back(part);
    return;
  }
  const Placement& p = placements[axis];
  const std::int64_t extent = mesh[axis];
  Pieces terms;
  if (p.is_partial()) terms = terms_of(part, p.reduce_op(), extent, seed + 1000 * axis);
  for (std::int64_t i = 0; i < extent; ++i) {
    at::Tensor next = part;
    if (p.is_partial()) {
      next = terms[static_cast<std::size_t>(i)];
    } else if (p.kind() == Placement::Kind::strided_shard) {
      next = part.index_select(p.dim(), held_by(part.size(p.dim()), p, extent, i));
    } else if (p.is_shard()) {
      const Range range = chunk(part.size(p.dim()), extent, i);
      next = part.narrow(p.dim(), range.begin, range.size);
    }
    split_axes(next, placements, mesh, axis + 1, seed, pieces);
  }
}

at::Tensor join_axes(c10::ArrayRef<at::Tensor> pieces, const Placements& placements, const Shape& mesh,
                     std::size_t axis, double& disagreement) {
  if (axis == mesh.size()) return pieces[0];
  const auto extent = static_cast<std::size_t>(mesh[axis]);
  const std::size_t count = pieces.size() / extent;
  Pieces parts;
  for (std::size_t i = 0; i < extent; ++i)
    parts.push_back(join_axes(pieces.slice(i * count, count), placements, mesh, axis + 1, disagreement));
  const Placement& p = placements[axis];
  if (p.kind() == Placement::Kind::shard) return at::cat(parts, p.dim());
  if (p.is_shard()) {
    std::int64_t size = 0;
    for (const at::Tensor& part : parts) size += part.size(p.dim());
    at::Tensor held = at::cat(parts, p.dim());
    std::vector<at::Tensor> places;
    for (std::size_t i = 0; i < extent; ++i)
      places.push_back(held_by(size, p, mesh[axis], static_cast<std::int64_t>(i)));
    return held.index_select(p.dim(), at::cat(places).argsort());
  }
  if (p.is_partial()) {
    at::Tensor reduced = at::empty_like(parts[0]);
    // c10d and meshtorch list the reductions in one order.
    const auto op = static_cast<c10d::ReduceOp::RedOpType>(p.reduce_op());
    check_reducible(op, {reduced});
    reduce_into(reduced, parts, op);
    return reduced;
  }
  for (const at::Tensor& copy : parts)
    disagreement = std::max(disagreement, largest_difference(parts[0], copy));
  return parts[0];
}

}  // namespace

std::vector<Shape> coordinates(const Shape& mesh) {
  std::vector<Shape> all{{}};
  for (const std::int64_t extent : mesh) {
    std::vector<Shape> longer;
    for (const Shape& begin : all) {
      for (std::int64_t i = 0; i < extent; ++i) {
        longer.push_back(begin);
        longer.back().push_back(i);
      }
    }
    all = std::move(longer);
  }
  return all;
}

Pieces split_over(const at::Tensor& whole, const Placements& placements, const Shape& mesh,
                  std::uint64_t seed) {
  Pieces pieces;
  split_axes(whole, placements, mesh, 0, seed, pieces);
  return pieces;
}

Joined join(const Pieces& pieces, const Placements& placements, const Shape& mesh) {
  Joined joined;
  joined.whole = join_axes(pieces, placements, mesh, 0, joined.disagreement);
  return joined;
}

// Small numbers that every type holds exactly, so that they add up without rounding.
at::Tensor random_like(const at::Tensor& tensor, std::uint64_t seed) {
  const at::Generator generator = at::detail::createCPUGenerator(seed);
  const auto draw = [&] { return at::randint(-8, 9, tensor.sizes(), generator, at::kDouble); };
  if (tensor.scalar_type() == at::kBool) return draw().gt(0);
  if (at::isIntegralType(tensor.scalar_type(), /*includeBool=*/false)) return draw().to(tensor.scalar_type());
  at::Tensor numbers = draw() / 4;
  if (tensor.is_complex()) numbers = at::complex(numbers, draw() / 4);
  return numbers.to(tensor.scalar_type());
}

double largest_difference(const at::Tensor& a, const at::Tensor& b) {
  if (a.numel() == 0) return 0;
  const bool is_complex = a.is_complex() || b.is_complex();
  const at::Tensor x = a.to(is_complex ? at::kComplexDouble : at::kDouble);
  const at::Tensor y = b.to(x.scalar_type());
  const at::Tensor same = x.eq(y).logical_or_(x.ne(x).logical_and_(y.ne(y)));
  const at::Tensor difference = (x - y).abs().masked_fill(same, 0);
  return at::nan_to_num(difference, std::numeric_limits<double>::infinity(),
                        std::numeric_limits<double>::infinity())
      .max()
      .item<double>();
}

}  // namespace meshtorch::internal
