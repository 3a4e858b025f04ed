// What communication over one mesh axis costs: plans of redistribution and the choice of layouts go by it. No
// torch.
#pragma once

namespace meshtorch {

// A collective over several axes pays the worst of each.
struct AxisCost {
  double latency_s = 1e-5;          // to start a collective
  double seconds_per_byte = 1e-10;  // 10 GB/s
  friend bool operator==(const AxisCost&, const AxisCost&) = default;
};

}  // namespace meshtorch
