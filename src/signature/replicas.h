// The tensors of one rank that others hold alike, a sample of which ranks compare with every few collectives.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <utility>
#include <vector>

namespace meshtorch::internal {

// What a rank shows of a part of one replica. Ranks compare samples of the same part only.
struct ReplicaSample {
  std::uint64_t id = 0;  // 0: nothing is shown
  std::uint64_t part = 0;
  std::uint64_t checksum = 0;
};

// One rank's copy of data that other ranks hold alike.
class Replica {
 public:
  Replica(std::vector<int> world_ranks, std::uint64_t id) : world_ranks_(std::move(world_ranks)), id_(id) {}
  virtual ~Replica() = default;
  Replica(const Replica&) = delete;
  Replica& operator=(const Replica&) = delete;

  // The ranks that hold it alike, in ascending order.
  const std::vector<int>& world_ranks() const { return world_ranks_; }
  // Equal on these ranks.
  std::uint64_t id() const { return id_; }
  // "distribute_tensor(Float[4, 3], [R])"
  virtual std::string name() const = 0;
  // Returns false once the tensor is freed.
  virtual bool is_alive() const = 0;
  // Returns false as long as the program may still fill the tensor: nothing is shown of it.
  virtual bool is_in_use() const { return true; }
  // Returns the checksum of a part, nothing if it cannot be read now. Every number is some part.
  virtual std::optional<std::uint64_t> checksum(std::uint64_t part) const = 0;

 private:
  const std::vector<int> world_ranks_;
  const std::uint64_t id_;
};

class Replicas {
 public:
  // One group's turns through the replicas that all its members hold, in the order of their ids. Members may
  // come to hold different lists, since each frees its tensors when it likes: all go on from what was shown
  // at the turn before, so that they show the same again. A replica counts as different when it differs at
  // two turns: between them a program may bring it to the other ranks.
  class OfGroup {
   public:
    OfGroup(std::shared_ptr<Replicas> all, std::vector<int> world_ranks);
    ~OfGroup();
    OfGroup(const OfGroup&) = delete;
    OfGroup& operator=(const OfGroup&) = delete;

    // Returns what this rank shows at the group's next turn; nothing if it has not compared the turn before.
    ReplicaSample sample();
    // Goes on without comparing what was shown.
    void pass_over() { shown_ = nullptr; }
    // Takes what the members showed at that turn. Returns the name of the replica if it differs again.
    std::optional<std::string> compare(const std::vector<ReplicaSample>& shown);

   private:
    friend Replicas;
    void add_if_held_by_all(const std::shared_ptr<const Replica>& replica);
    std::shared_ptr<const Replica> next_in_use();

    const std::shared_ptr<Replicas> all_;
    const std::vector<int> world_ranks_;                                   // in ascending order
    std::map<std::uint64_t, std::shared_ptr<const Replica>> held_by_all_;  // under the mutex of `all_`
    std::shared_ptr<const Replica> shown_;                                 // null between turns
    std::uint64_t last_ = 0;                                               // the id of the latest turn
    std::uint64_t round_ = 0;                                              // how often all were shown
    std::map<std::uint64_t, std::uint64_t> suspects_;  // the part that differed, by the replica's id
  };

  void add(std::shared_ptr<const Replica> replica);
  // No replica of now is compared any more.
  void clear();

 private:
  std::mutex mutex_;
  std::vector<std::shared_ptr<const Replica>> list_;  // for groups that are made later
  std::size_t next_cleanup_ = 64;
  std::vector<OfGroup*> groups_;
};

}  // namespace meshtorch::internal
