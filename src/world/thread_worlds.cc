// The thread worlds of this process, by name.
#include "world/thread_worlds.h"

#include <c10/util/Exception.h>

namespace meshtorch::internal {

std::shared_ptr<ThreadWorld> join_thread_world(const std::string& name, int size, int rank) {
  static std::mutex mutex;
  static std::map<std::string, std::weak_ptr<ThreadWorld>> worlds;
  const std::scoped_lock lock(mutex);
  auto world = worlds[name].lock();
  TORCH_CHECK_VALUE(!world || world->size() == size, "meshtorch: the thread world \"", name, "\" has ",
                    world->size(), " ranks, but this rank says ", size,
                    "\n  do: give the same world_size on every rank");
  if (!world || !world->join(rank)) {
    world = std::make_shared<ThreadWorld>(size);
    world->join(rank);
    worlds[name] = world;
  }
  return world;
}

}  // namespace meshtorch::internal
