// Calls that all ranks of a mesh make alike though they send nothing, such as a seed or a layout, and values
// that they hold alike: what a rank has made of them since its groups last met, which their next call
// compares.
#pragma once

#include <atomic>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "comm/call_hash.h"
#include "comm/replicas.h"

namespace meshtorch::internal {

// "manual_seed(1)", made when somebody asks.
using CallWords = std::function<std::string()>;

// What ranks declare: that they called something, or hold equal values.
enum class DeclaredKind : std::uint8_t { call, values };

// What a rank declared between two calls of a group.
struct Declared {
  CallHash calls;
  CallHash values;
  std::uint64_t count = 0;
  std::vector<CallWords> latest;  // the last of them, the oldest first

  // ", after manual_seed(1), from_local(…)"
  std::string text() const;
};

// The declarations of one rank.
class Declarations {
 public:
  // Those that concern one group: all its members made them too.
  class OfGroup {
   public:
    OfGroup(std::shared_ptr<Declarations> all, std::vector<int> world_ranks);
    ~OfGroup();
    OfGroup(const OfGroup&) = delete;
    OfGroup& operator=(const OfGroup&) = delete;

    // What was declared since this was last asked; null, at the cost of a load, if nothing was.
    std::unique_ptr<Declared> take() {
      return has_any_.load(std::memory_order_relaxed) ? take_all() : nullptr;
    }

   private:
    friend class Declarations;
    std::unique_ptr<Declared> take_all();

    const std::shared_ptr<Declarations> all_;
    const std::vector<int> world_ranks_;  // in ascending order
    std::atomic<bool> has_any_ = false;
    std::unique_ptr<Declared> declared_;
  };

  // All these world ranks call the same, in the same order. It is compared by each group that is among them,
  // at its next call; groups that are made later do not know of it.
  void add(const std::vector<std::int64_t>& world_ranks, const CallHash& hash, const CallWords& words,
           DeclaredKind kind = DeclaredKind::call);
  // What was called so far is not compared any more in groups of these world ranks, in ascending order.
  void forget(const std::vector<int>& world_ranks);

  // Returns the number of a tensor among those that these world ranks have made alike, from 1.
  std::uint64_t number_of_next_tensor(const std::vector<std::int64_t>& world_ranks);
  // Ranks have disagreed, and may have made different numbers of tensors: counts from 1 again, and compares no
  // replica of now any more. Where other ranks of a mesh still count on, their next collective disagrees too,
  // after which they count alike.
  void restart_count();

  const std::shared_ptr<Replicas>& replicas() const { return replicas_; }

 private:
  std::mutex mutex_;
  const std::shared_ptr<Replicas> replicas_ = std::make_shared<Replicas>();
  std::map<std::vector<std::int64_t>, std::uint64_t> tensors_made_;
  std::vector<OfGroup*> groups_;
};

// Of the one rank that this process is. Ranks that are threads have theirs in their world.
const std::shared_ptr<Declarations>& declarations_of_process();

}  // namespace meshtorch::internal
