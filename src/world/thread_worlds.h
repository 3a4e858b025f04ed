// The thread worlds of this process, found by name so that the threads of a user's own can join one.
#pragma once

#include <memory>
#include <string>

#include "agreement/thread_world.h"

namespace meshtorch::internal {

// Makes the calling thread a rank of the world of this name, which the first that asks makes and the first
// that leaves ends. Throws if it has another size or the rank is taken.
std::shared_ptr<ThreadWorld> join_thread_world(const std::string& name, int size, int rank);

}  // namespace meshtorch::internal
