// Placements under the short names that tests of plans and choices write them in.
#pragma once

#include <meshtorch/placement.h>

namespace meshtorch {

inline constexpr Placement R = Replicate();
inline constexpr Placement S0 = Shard(0);
inline constexpr Placement S1 = Shard(1);
inline constexpr Placement P = Partial();
inline constexpr Placement PMax = Partial(ReduceOp::max);

}  // namespace meshtorch
