// How a tensor lies along one mesh axis: split, replicated, or a pending reduction. Values, no torch.
#pragma once

#include <cstdint>
#include <functional>
#include <iosfwd>
#include <string>
#include <string_view>
#include <vector>

#include "meshtorch/api.h"

namespace meshtorch {

// The reductions that a pending result or a collective can ask for.
enum class ReduceOp : std::uint8_t { sum, avg, product, min, max, band, bor, bxor };

// The name: "sum", "avg", …
MESHTORCH_API std::string_view to_string(ReduceOp op);

// The inverse of to_string; also takes PyTorch's "prod". Throws std::invalid_argument that lists the names.
MESHTORCH_API ReduceOp parse_reduce_op(std::string_view name);

// How a tensor lies along one mesh axis; made by Shard, StridedShard, Replicate and Partial.
class MESHTORCH_API Placement {
 public:
  enum class Kind : std::uint8_t { replicate, shard, strided_shard, partial };

  // Replicated, the placement that is right for any tensor.
  constexpr Placement() = default;

  constexpr Kind kind() const { return kind_; }
  constexpr bool is_replicate() const { return kind_ == Kind::replicate; }
  constexpr bool is_partial() const { return kind_ == Kind::partial; }
  constexpr bool is_partial(ReduceOp op) const { return is_partial() && op_ == op; }
  // True for plain and strided shards, of any dim or of the given one.
  constexpr bool is_shard() const { return kind_ == Kind::shard || kind_ == Kind::strided_shard; }
  constexpr bool is_shard(std::int64_t dim) const { return is_shard() && dim_ == dim; }

  // The split dim of a shard; may be negative until normalized.
  constexpr std::int64_t dim() const { return dim_; }
  // The number of pieces a strided shard cuts the dim into before it splits each; 1 for a plain shard.
  constexpr std::int64_t split_factor() const { return split_factor_; }
  // The reduction that a partial waits for.
  constexpr ReduceOp reduce_op() const { return op_; }

  // The same placement with a shard's negative dim counted from the end of a tensor of `rank` dims. Throws
  // std::out_of_range if the tensor has no such dim.
  Placement normalized(std::int64_t rank) const;

  // "S(0)", "SS(0, 2)", "R", "P(sum)".
  std::string to_string() const;

  friend constexpr bool operator==(const Placement&, const Placement&) = default;
  friend constexpr auto operator<=>(const Placement&, const Placement&) = default;

  friend constexpr Placement Shard(std::int64_t dim);
  friend Placement StridedShard(std::int64_t dim, std::int64_t split_factor);
  friend constexpr Placement Partial(ReduceOp op);

 private:
  Kind kind_ = Kind::replicate;
  ReduceOp op_ = ReduceOp::sum;
  std::int32_t dim_ = 0;
  std::int32_t split_factor_ = 1;
};

// Throws std::invalid_argument: no tensor has so many dims.
[[noreturn]] MESHTORCH_API void throw_no_such_dim(std::int64_t dim);

// Split along `dim` as torch::chunk splits: equal pieces, the last ones short or empty.
constexpr Placement Shard(std::int64_t dim) {
  Placement p;
  p.kind_ = Placement::Kind::shard;
  p.dim_ = static_cast<std::int32_t>(dim);
  if (p.dim_ != dim) throw_no_such_dim(dim);
  return p;
}

// Split along `dim` in an order other than left to right: the dim is cut into `split_factor` pieces, each is
// split over the axis, and a rank holds its part of every piece. FSDP over tensor parallelism needs it.
MESHTORCH_API Placement StridedShard(std::int64_t dim, std::int64_t split_factor);

// The whole tensor on every rank of the axis.
constexpr Placement Replicate() { return {}; }

// A term on every rank; the tensor is their reduction.
constexpr Placement Partial(ReduceOp op = ReduceOp::sum) {
  Placement p;
  p.kind_ = Placement::Kind::partial;
  p.op_ = op;
  return p;
}
inline Placement Partial(std::string_view op) { return Partial(parse_reduce_op(op)); }

// One placement for each mesh axis.
using Placements = std::vector<Placement>;

// "[S(0), R]"; operator<< prints one placement or the name of a reduction; equal placements have equal
// hashes.
MESHTORCH_API std::string to_string(const Placements& placements);
MESHTORCH_API std::ostream& operator<<(std::ostream& out, const Placement& placement);
MESHTORCH_API std::ostream& operator<<(std::ostream& out, ReduceOp op);
MESHTORCH_API std::size_t hash_value(const Placement& placement);
MESHTORCH_API std::size_t hash_value(const Placements& placements);

}  // namespace meshtorch

template <>
struct std::hash<meshtorch::Placement> {
  std::size_t operator()(const meshtorch::Placement& p) const { return meshtorch::hash_value(p); }
};
