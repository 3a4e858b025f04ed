// The thread worlds of this process, found by name so that the threads of a user's own can join one.
#pragma once

#include <memory>
#include <string>

#include "comm/thread_world.h"

namespace meshtorch {

// The world of this name, made by the first that asks and dropped when its last rank leaves. Throws if it has another size.
std::shared_ptr<ThreadWorld> thread_world(const std::string& name, int size);

}  // namespace meshtorch
