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

#include "signature/call_hash.h"
#include "signature/replicas.h"

namespace meshtorch::internal {

// "manual_seed(1)", made when somebody asks.
using CallWords = std::function<std::string()>;

// What ranks declare: that they called something, or hold equal values.
enum class LocalCallKind : std::uint8_t { call, values };

// What a rank declared between two calls of a group.
struct Declared {
  CallHash calls;
  CallHash values;
  std::uint64_t count = 0;
  std::vector<CallWords> latest;  // the last of them, the oldest first

  // ", after manual_seed(1), from_local(…)"
  std::string text() const;
};

// The local_calls of one rank.
class LocalCallLog {
 public:
  // Those that concern one group: all its members made them too.
  class OfGroup {
   public:
    OfGroup(std::shared_ptr<LocalCallLog> all, std::vector<int> world_ranks);
    ~OfGroup();
    OfGroup(const OfGroup&) = delete;
    OfGroup& operator=(const OfGroup&) = delete;

    // What was declared since this was last asked; null, at the cost of a load, if nothing was.
    std::unique_ptr<Declared> take() {
      return has_any_.load(std::memory_order_relaxed) ? take_all() : nullptr;
    }
    // Whether the members may have made different numbers of tensors, as far as this rank knows.
    bool may_counts_differ() const { return may_counts_differ_.load(std::memory_order_relaxed); }
    // All members have come to one point of their programs: they count alike again. `point` is equal on them.
    void agree_on_counts(std::uint64_t point) { all_->agree_on_counts(world_ranks_, point); }

   private:
    friend class LocalCallLog;
    std::unique_ptr<Declared> take_all();

    const std::shared_ptr<LocalCallLog> all_;
    const std::vector<int> world_ranks_;  // in ascending order
    std::atomic<bool> has_any_ = false;
    std::atomic<bool> may_counts_differ_ = false;
    std::unique_ptr<Declared> declared_;
  };

  // All these world ranks call the same, in the same order. It is compared by each group that is among them,
  // at its next call; groups that are made later do not know of it.
  void add(const std::vector<std::int64_t>& world_ranks, const CallHash& hash, const CallWords& words,
           LocalCallKind kind = LocalCallKind::call);
  // What was called so far is not compared any more in groups of these world ranks, in ascending order.
  void forget(const std::vector<int>& world_ranks);

  // Returns a number of the tensor among those that these world ranks have made alike; kUnknownOrigin if they
  // may have made different numbers of tensors.
  std::uint64_t number_of_next_tensor(const std::vector<std::int64_t>& world_ranks);
  // All these world ranks, in ascending order, get one error now, and go on from there: they count anew.
  // `error` is equal on them. Of tensors that other ranks make too, and after an error that ranks get in
  // their own ways, which gives no world ranks, the number is not known until they agree. No replica of now
  // is compared any more.
  void restart_counts(const std::vector<int>& world_ranks = {}, std::uint64_t error = 0);

  const std::shared_ptr<Replicas>& replicas() const { return replicas_; }

 private:
  // How many tensors some world ranks have made alike since a point of their programs; 0: since the
  // beginning.
  struct TensorCount {
    std::vector<int> world_ranks;  // in ascending order
    std::uint64_t since = 0;
    std::uint64_t tensors = 0;
    bool is_known = true;
  };
  // A point to which these world ranks, in ascending order, came together.
  struct CommonPoint {
    std::vector<int> world_ranks;
    std::uint64_t point;
  };

  void agree_on_counts(const std::vector<int>& world_ranks, std::uint64_t point);
  // With the lock held. The latest point to which all these came together, null if there is none.
  const CommonPoint* point_of(const std::vector<int>& world_ranks) const;
  void count_from(CommonPoint latest);

  std::mutex mutex_;
  const std::shared_ptr<Replicas> replicas_ = std::make_shared<Replicas>();
  std::map<std::vector<std::int64_t>, TensorCount> tensors_made_;
  bool has_error_ = false;
  std::vector<CommonPoint> points_;  // since the latest error, the latest first
  std::vector<OfGroup*> groups_;
};

// Of the one rank that this process is. Ranks that are threads have theirs in their world.
const std::shared_ptr<LocalCallLog>& local_calls_of_process();

}  // namespace meshtorch::internal
