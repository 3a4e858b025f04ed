// Ranks as threads, started by somebody who has to look after other things while they run.
#pragma once

#include "meshtorch/api.h"
#include "meshtorch/launch.h"

namespace meshtorch::internal {

// As spawn. While ranks run, `watch` is called on the caller's thread, several times a second.
MESHTORCH_FOR_PYTHON void spawn_watched(int world_size, const std::function<void(int rank)>& fn,
                                        const SpawnOptions& options, const std::function<void()>& watch);

}  // namespace meshtorch::internal
