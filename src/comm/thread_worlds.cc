// The thread worlds of this process, by name.
#include "comm/thread_worlds.h"

#include <c10/util/Exception.h>

namespace meshtorch {

std::shared_ptr<ThreadWorld> thread_world(const std::string& name, int size) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<ThreadWorld>> worlds;
  const std::scoped_lock lock(mutex);
  auto world = worlds[name].lock();
  if (!world) {
    world = std::make_shared<ThreadWorld>(size);
    worlds[name] = world;
  }
  TORCH_CHECK_VALUE(world->size() == size, "meshtorch: the thread world \"", name, "\" has ", world->size(),
                    " ranks, but this rank says ", size);
  return world;
}

}  // namespace meshtorch
