// What one rank owns: its world, its groups and its meshes. A rank is a process, or a thread under spawn.
#pragma once

#include <ATen/core/Generator.h>
#include <torch/csrc/distributed/c10d/ProcessGroup.hpp>

#include <atomic>
#include <functional>
#include <future>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "backends/world.h"
#include "core/random_source.h"
#include "meshtorch/api.h"
#include "meshtorch/group.h"

namespace meshtorch::internal {

class MeshImpl;
class RankContext;

struct GroupImpl {
  std::vector<std::int64_t> ranks;
  int rank = -1;
  c10::intrusive_ptr<c10d::ProcessGroup> process_group;  // null on ranks outside
  bool is_left = false;                                  // its world was destroyed
  const RankContext* owner = nullptr;                    // null if it was made elsewhere
  int owner_rank = 0;
};

class MESHTORCH_FOR_PYTHON RankContext {
 public:
  explicit RankContext(World world);

  const World& world() const { return world_; }
  // Ends the world for this rank: its groups let go of what they hold, whoever still has them.
  void leave();
  bool is_left() const { return is_left_; }
  // The group of these ranks, made at the first call and kept.
  std::shared_ptr<const GroupImpl> group(const std::vector<std::int64_t>& ranks);
  // The group that mesh axes of this name and these ranks use in the place of that; null if there is none.
  std::shared_ptr<const GroupImpl> group_of_axis(const std::string& name,
                                                 const std::vector<std::int64_t>& ranks);
  // Lets them use this one.
  void set_group_of_axis(const std::string& name, const std::vector<std::int64_t>& ranks,
                         c10::intrusive_ptr<c10d::ProcessGroup> process_group);
  // A group that was made before, by its ranks or its process group; null if there is none.
  std::shared_ptr<const GroupImpl> find_group(const std::vector<std::int64_t>& ranks);
  std::shared_ptr<const GroupImpl> find_group(const c10::intrusive_ptr<c10d::ProcessGroup>& process_group);
  // Tells the members of all groups that this rank will not come again.
  void leave_groups();
  const std::shared_ptr<const GroupImpl>& default_group() const { return default_group_; }
  // The one mesh of each content that this rank holds: `candidate`, unless an equal one is there.
  std::shared_ptr<MeshImpl> intern(const std::string& content,
                                   const std::function<std::shared_ptr<MeshImpl>()>& make);
  RandomSource& random() { return random_; }
  // What plain random operators draw from; undefined for a rank that is a process: it has LibTorch's.
  const at::Generator& plain_generator() const { return plain_generator_; }

 private:
  World world_;
  std::shared_ptr<const GroupImpl> default_group_;
  std::shared_ptr<GroupImpl> make_group(const std::vector<std::int64_t>& ranks) const;
  // Without a process group.
  std::shared_ptr<GroupImpl> new_group(const std::vector<std::int64_t>& ranks) const;

  std::mutex mutex_;  // never held while a group is made, which waits for other ranks
  std::map<std::vector<std::int64_t>, std::shared_ptr<GroupImpl>> groups_;
  std::map<std::pair<std::string, std::vector<std::int64_t>>, std::shared_ptr<GroupImpl>> groups_of_axes_;
  std::map<std::vector<std::int64_t>, std::shared_future<void>> being_made_;
  std::atomic<bool> is_left_ = false;
  std::map<std::string, std::shared_ptr<MeshImpl>> meshes_;
  RandomSource random_;
  at::Generator plain_generator_;
};

// The context of the calling rank, also on the autograd threads that work for it. Throws if the rank has not
// joined.
std::shared_ptr<RankContext> current_rank();
// The same, null if the rank has not joined.
MESHTORCH_FOR_PYTHON std::shared_ptr<RankContext> current_rank_or_null();
// Whether the calling thread is a rank, and another than the owner: what belongs to one rank is no business
// of the other ranks of its process. Threads of the user's own may work for any.
bool is_another_rank(const RankContext* owner);
// Where the random numbers of ranks that join from now on start.
RandomSource& starting_random();
// Makes `context` that of the calling thread, or of the whole process.
void set_thread_rank(std::shared_ptr<RankContext> context);
MESHTORCH_FOR_PYTHON void set_process_rank(std::shared_ptr<RankContext> context);

}  // namespace meshtorch::internal
