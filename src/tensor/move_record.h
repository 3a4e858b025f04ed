// Tells the decision logs that are active on this rank what is redistributed; costs one look while there is
// none.
#pragma once

#include <atomic>

#include <ATen/core/Tensor.h>

#include "mesh/layout.h"
#include "redistribute/plan.h"

namespace meshtorch::internal {

// Set while a rank of this process has a decision log.
using MoveRecorder = void (*)(const at::Tensor& local, const Shape& shape, const Layout& from,
                              const Layout& to, const Plan& plan);
inline std::atomic<MoveRecorder> move_recorder = nullptr;

inline void record_move(const at::Tensor& local, const Shape& shape, const Layout& from, const Layout& to,
                        const Plan& plan) {
  if (const MoveRecorder record = move_recorder.load(std::memory_order_relaxed))
    record(local, shape, from, to, plan);
}

}  // namespace meshtorch::internal
