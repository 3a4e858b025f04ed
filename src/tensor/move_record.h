// Tells the decision logs that are active on this rank what is redistributed; costs one look while there is
// none.
#pragma once

#include <atomic>

#include <ATen/core/Tensor.h>

#include "mesh/layout.h"
#include "redistribute/plan.h"

namespace meshtorch::internal {

// How many decision logs the ranks of this process have.
extern std::atomic<int> active_decision_logs;

void record_move_in_logs(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to,
                         const Plan& plan);

inline void record_move(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to,
                        const Plan& plan) {
  if (active_decision_logs.load(std::memory_order_relaxed) > 0)
    record_move_in_logs(local, shape, from, to, plan);
}

}  // namespace meshtorch::internal
