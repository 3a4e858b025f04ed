// Placement: names, normalization, printing.
#include "meshtorch/placement.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <limits>
#include <ostream>
#include <stdexcept>

namespace meshtorch {
namespace {

constexpr std::array<std::string_view, 8> kReduceOpNames{"sum", "avg",  "product", "min",
                                                         "max", "band", "bor",     "bxor"};

}  // namespace

std::string_view to_string(ReduceOp op) { return kReduceOpNames.at(static_cast<std::size_t>(op)); }

ReduceOp parse_reduce_op(std::string_view name) {
  std::string lower(name);  // c10d writes them in capitals
  std::ranges::transform(lower, lower.begin(), [](unsigned char c) { return std::tolower(c); });
  if (lower == "prod") return ReduceOp::product;
  for (std::size_t i = 0; i < kReduceOpNames.size(); ++i) {
    if (kReduceOpNames[i] == lower) return static_cast<ReduceOp>(i);
  }
  std::string message = "meshtorch: unknown reduction \"" + std::string(name) + "\"\n  do: use one of";
  for (std::string_view known : kReduceOpNames) message.append(" ").append(known);
  throw std::invalid_argument(message);
}

void throw_no_such_dim(std::int64_t dim) {
  throw std::invalid_argument("meshtorch: no tensor has a dim " + std::to_string(dim) + "\n  in: Shard(" +
                              std::to_string(dim) +
                              ")\n  do: give a dim of the tensor, from 0 on, or from the end with -1");
}

Placement StridedShard(std::int64_t dim, std::int64_t split_factor) {
  if (split_factor < 1 || split_factor > std::numeric_limits<std::int32_t>::max()) {
    throw std::invalid_argument(
        "meshtorch: the split factor of a strided shard must be at least 1 and at most " +
        std::to_string(std::numeric_limits<std::int32_t>::max()) + ", not " + std::to_string(split_factor));
  }
  Placement p = Shard(dim);
  if (split_factor == 1) return p;
  p.kind_ = Placement::Kind::strided_shard;
  p.split_factor_ = static_cast<std::int32_t>(split_factor);
  return p;
}

Placement Placement::normalized(std::int64_t rank) const {
  if (!is_shard()) return *this;
  if (dim_ < -rank || dim_ >= rank) {
    throw std::out_of_range("meshtorch: " + to_string() + " splits dim " + std::to_string(dim_) +
                            ", but the tensor has " + std::to_string(rank) + (rank == 1 ? " dim" : " dims"));
  }
  Placement p = *this;
  if (p.dim_ < 0) p.dim_ += static_cast<std::int32_t>(rank);
  return p;
}

std::string Placement::to_string() const {
  switch (kind_) {
    case Kind::replicate:
      return "R";
    case Kind::shard:
      return "S(" + std::to_string(dim_) + ")";
    case Kind::strided_shard:
      return "SS(" + std::to_string(dim_) + ", " + std::to_string(split_factor_) + ")";
    case Kind::partial:
      return "P(" + std::string(meshtorch::to_string(op_)) + ")";
  }
  return "?";
}

std::string to_string(const Placements& placements) {
  std::string text = "[";
  for (const Placement& p : placements) text.append(text.size() > 1 ? ", " : "").append(p.to_string());
  return text + "]";
}

std::ostream& operator<<(std::ostream& out, const Placement& placement) {
  return out << placement.to_string();
}
std::ostream& operator<<(std::ostream& out, ReduceOp op) { return out << to_string(op); }

std::size_t hash_value(const Placement& p) {
  const auto kind = static_cast<std::size_t>(p.kind());
  const auto detail =
      p.is_partial() ? static_cast<std::size_t>(p.reduce_op()) : static_cast<std::size_t>(p.dim() + 64);
  return kind + 4 * (detail + 1024 * static_cast<std::size_t>(p.split_factor()));
}

std::size_t hash_value(const Placements& placements) {
  std::size_t hash = placements.size();
  for (const Placement& p : placements) hash = hash * 1000003 + hash_value(p);
  return hash;
}

}  // namespace meshtorch
