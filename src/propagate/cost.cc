// The ring formulas for collectives, with uneven parts counted as padded to the largest.
#include "propagate/cost.h"

#include <algorithm>
#include <vector>

namespace meshtorch::internal {
namespace {

// Memory is taken to be this much faster than the links of any axis.
constexpr double kMemorySpeed = 10;

MoveCost collective(double bytes, const AxisCost& axis) {
  return {axis.latency_s + bytes * axis.seconds_per_byte, true};
}

MoveCost local(double bytes, const AxisCost& axis) {
  return {bytes * axis.seconds_per_byte / kMemorySpeed, false};
}

MoveCost from_replicate(const Placement& to, const AxisTensor& tensor, std::int64_t extent,
                        const AxisCost& axis) {
  return local(tensor.largest_part_bytes(to, extent), axis);
}

MoveCost all_gather(const Placement& from, const AxisTensor& tensor, std::int64_t extent,
                    const AxisCost& axis) {
  return collective(static_cast<double>(extent - 1) * tensor.largest_part_bytes(from, extent), axis);
}

MoveCost reduce_scatter(const Placement& to, const AxisTensor& tensor, std::int64_t extent,
                        const AxisCost& axis) {
  return collective(static_cast<double>(extent - 1) * tensor.largest_part_bytes(to, extent), axis);
}

double share_sent(std::int64_t extent) {
  return static_cast<double>(extent - 1) / static_cast<double>(extent);
}

MoveCost all_to_all(const Placement& from, const Placement& to, const AxisTensor& tensor, std::int64_t extent,
                    const AxisCost& axis) {
  const double part =
      std::max(tensor.largest_part_bytes(from, extent), tensor.largest_part_bytes(to, extent));
  return collective(share_sent(extent) * part, axis);
}

MoveCost all_reduce(const AxisTensor& tensor, std::int64_t extent, const AxisCost& axis) {
  return collective(2 * share_sent(extent) * tensor.bytes(), axis);
}

}  // namespace

double AxisTensor::bytes() const {
  auto product = static_cast<double>(item_size);
  for (const std::int64_t size : shape) product *= static_cast<double>(size);
  return product;
}

double AxisTensor::largest_part_bytes(const Placement& placement, std::int64_t extent) const {
  if (!placement.is_shard()) return bytes();
  AxisTensor part = *this;
  std::int64_t& size = part.shape[static_cast<std::size_t>(placement.dim())];
  const std::vector<Range> held = split({{0, size}}, placement, extent, 0);
  size = 0;
  for (const Range& r : held) size += r.size;
  return part.bytes();
}

MoveCost move_cost(const Placement& from, const Placement& to, const AxisTensor& tensor, std::int64_t extent,
                   const AxisCost& axis) {
  if (from == to || extent == 1) return {};
  if (from.is_replicate()) return from_replicate(to, tensor, extent, axis);
  if (from.is_shard() && to.is_shard()) return all_to_all(from, to, tensor, extent, axis);
  if (from.is_partial() && to.is_shard()) return reduce_scatter(to, tensor, extent, axis);
  const MoveCost gathered =
      from.is_shard() ? all_gather(from, tensor, extent, axis) : all_reduce(tensor, extent, axis);
  return to.is_replicate() ? gathered : gathered + from_replicate(to, tensor, extent, axis);
}

MoveCost reorder_cost(const Placement& placement, const AxisTensor& tensor, std::int64_t extent,
                      const AxisCost& axis) {
  if (extent == 1) return {};
  return all_to_all(placement, placement, tensor, extent, axis);
}

}  // namespace meshtorch::internal
