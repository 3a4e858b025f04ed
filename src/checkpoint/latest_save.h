// The background save that a rank may have under way.
#pragma once

namespace meshtorch::checkpoint::internal {

// Waits for it; throws its error if nobody has seen it yet.
void finish_latest_save();

}  // namespace meshtorch::checkpoint::internal
