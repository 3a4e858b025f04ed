// What communication along the axes of a mesh costs: as set, or as measured.
#include <ATen/ATen.h>

#include <algorithm>
#include <chrono>
#include <cmath>
#include <limits>

#include "mesh/mesh_impl.h"
#include "meshtorch/collectives.h"
#include "meshtorch/device_mesh.h"
#include "rules/own_rules.h"
#include "runtime/host_tensor.h"

namespace meshtorch {
using namespace internal;
namespace {

// How many ranks both steps have in common along their digits; 1 if they are of different digits.
std::int64_t common_extent(const MeshStep& a, const MeshStep& b) {
  const std::int64_t begin = std::max(a.stride, b.stride);
  const std::int64_t end = std::min(a.stride * a.size, b.stride * b.size);
  return begin < end ? end / begin : 1;
}

std::int64_t common_extent(const MeshAxis& a, const MeshAxis& b) {
  std::int64_t extent = 1;
  for (const MeshStep& in_a : a) {
    for (const MeshStep& in_b : b) extent *= common_extent(in_a, in_b);
  }
  return extent;
}

AxisCost worse(const AxisCost& a, const AxisCost& b) {
  return {std::max(a.latency_s, b.latency_s), std::max(a.seconds_per_byte, b.seconds_per_byte)};
}

void check_cost(const AxisCost& cost) {
  const bool is_right = std::isfinite(cost.latency_s) && cost.latency_s >= 0 &&
                        std::isfinite(cost.seconds_per_byte) && cost.seconds_per_byte > 0;
  TORCH_CHECK_VALUE(
      is_right, "meshtorch: an axis cannot cost ", cost.latency_s, " s a collective and ",
      cost.seconds_per_byte,
      " s a byte\n  in: set_axis_cost\n  do: give a latency of 0 or more, and more than 0 a byte");
}

// The least time of several calls: a machine has other work too.
double least_seconds(const at::Tensor& tensor, const Group& group, int calls) {
  using Clock = std::chrono::steady_clock;
  double least = std::numeric_limits<double>::infinity();
  for (int i = 0; i < calls; ++i) {
    const auto start = Clock::now();
    wait_tensor(all_reduce(tensor, ReduceOp::sum, group));
    least = std::min(least, std::chrono::duration<double>(Clock::now() - start).count());
  }
  return least;
}

AxisCost measured_cost(const Group& group, c10::DeviceType device) {
  constexpr std::int64_t kFloats = 1 << 20;
  constexpr int kWarmUp = 3;
  constexpr int kSmallCalls = 20;
  constexpr int kLargeCalls = 5;
  const at::Tensor small = at::zeros({1}, device);
  const at::Tensor large = at::zeros({kFloats}, device);
  least_seconds(small, group, kWarmUp);
  const double latency = least_seconds(small, group, kSmallCalls);
  const double seconds = least_seconds(large, group, kLargeCalls);
  // What each rank sends: all but its part, twice.
  const double bytes = 2.0 * (group.size() - 1) / group.size() * static_cast<double>(large.nbytes());
  constexpr double kFastest = 1e-13;  // no memory is faster: the clock was too coarse
  return {latency, std::max((seconds - latency) / bytes, kFastest)};
}

}  // namespace

std::optional<AxisCost> internal::MeshImpl::cost_along(const MeshAxis& axis) const {
  const std::scoped_lock lock(mutex_);
  std::optional<AxisCost> worst;
  std::int64_t known = 1;
  for (const auto& [other, cost] : costs_) {
    if (other == axis) return cost;
    const std::int64_t common = common_extent(axis, other);
    if (common == 1) continue;
    worst = worst ? worse(*worst, cost) : cost;
    known *= common;
  }
  return worst && known < axis_extent(axis) ? worse(*worst, {}) : worst;
}

std::vector<AxisCost> internal::MeshImpl::axis_costs() {
  std::vector<AxisCost> costs(shape_.size());
  const std::vector<ParentLink> all = cuts();
  for (std::size_t axis = 0; axis < costs.size(); ++axis) {
    for (const ParentLink& cut : all) {
      const auto known = cut.root->cost_along(cut.axes[axis]);
      if (!known) continue;
      costs[axis] = *known;
      break;
    }
  }
  return costs;
}

void internal::MeshImpl::set_axis_cost(std::size_t axis, const AxisCost& cost) {
  check_cost(cost);
  for (const ParentLink& cut : cuts()) {
    const std::scoped_lock lock(cut.root->mutex_);
    auto& costs = cut.root->costs_;
    std::erase_if(costs, [&](const auto& entry) { return entry.first == cut.axes[axis]; });
    costs.emplace_back(cut.axes[axis], cost);
  }
  outdate_decisions();
}

AxisCost DeviceMesh::axis_cost(std::int64_t axis) const {
  return impl_->axis_costs()[impl_->axis_index(axis)];
}
AxisCost DeviceMesh::axis_cost(const std::string& axis) const { return axis_cost(impl_->axis_named(axis)); }
void DeviceMesh::set_axis_cost(std::int64_t axis, const AxisCost& cost) const {
  impl_->set_axis_cost(impl_->axis_index(axis), cost);
}
void DeviceMesh::set_axis_cost(const std::string& axis, const AxisCost& cost) const {
  set_axis_cost(impl_->axis_named(axis), cost);
}

void DeviceMesh::measure() const {
  if (!impl_->backend().has_peers) return;
  std::vector<double> mine(2 * impl_->shape().size());
  for (std::size_t axis = 0; axis < impl_->shape().size(); ++axis) {
    if (impl_->shape()[axis] == 1 || !impl_->coordinate()) continue;
    const AxisCost cost = measured_cost(impl_->group({static_cast<int>(axis)}), impl_->device_type());
    mine[2 * axis] = cost.latency_s;
    mine[2 * axis + 1] = cost.seconds_per_byte;
  }
  const at::Tensor numbers = at::tensor(mine, on_host(at::kDouble)).to(impl_->device_type());
  const at::Tensor all = wait_tensor(all_reduce(numbers, ReduceOp::max, Group())).cpu();
  const auto* found = all.const_data_ptr<double>();
  for (std::size_t axis = 0; axis < impl_->shape().size(); ++axis) {
    if (impl_->shape()[axis] > 1) impl_->set_axis_cost(axis, {found[2 * axis], found[2 * axis + 1]});
  }
}

}  // namespace meshtorch
