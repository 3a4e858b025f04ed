// Ranks that are threads of one process: where they meet for a collective, and how they learn that one of
// them is gone.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshtorch {

// What one rank brings to a collective. `signature` is what all ranks must agree on, in words.
struct ThreadCall {
  std::string name;
  std::string signature;
  // The rank's own arguments, for the peers to read while all are inside.
  const void* arguments = nullptr;
};

class ThreadWorld;

// The meeting point of one group. All members enter with a call, work on each other's arguments, and leave
// together.
class ThreadMeeting {
 public:
  ThreadMeeting(ThreadWorld& world, std::vector<int> world_ranks);

  // Blocks until every member has entered. Throws the same error on every member if their signatures differ;
  // throws if a member failed, returned, or did not come in time.
  const std::vector<const ThreadCall*>& enter(int rank, const ThreadCall& call,
                                              std::chrono::milliseconds timeout);
  // Blocks until every member that entered is here; they read each other's arguments until then, so that it
  // never gives up. A member that could not do its part says why in `failure`; then all throw it.
  void sync(int rank, const std::string& failure = {});

  int size() const { return static_cast<int>(world_ranks_.size()); }
  // "rank 0: waiting in all_reduce #3; rank 1: left all_gather #2; …", for messages.
  std::string describe() const;

 private:
  friend class ThreadWorld;
  struct Attendance {
    std::uint64_t count = 0;  // collectives entered so far
    std::string name;         // the latest of them
    bool inside = false;
  };
  // Joins the generation that is gathering; true if that completes it.
  bool arrive_locked();
  // Waits for all members to enter; gives up if one cannot come or does not in time.
  void await_entry(std::unique_lock<std::mutex>& lock, int rank, std::chrono::milliseconds timeout);
  // Waits for members that are all inside and will come.
  void await_exit(std::unique_lock<std::mutex>& lock, int rank);
  std::string disagreement() const;

  ThreadWorld& world_;
  const std::vector<int> world_ranks_;
  std::condition_variable changed_;
  std::vector<const ThreadCall*> calls_;
  std::vector<Attendance> attendance_;
  int arrived_ = 0;
  std::string failure_;       // of the generation that is gathering
  std::string last_failure_;  // of the latest complete generation
  std::uint64_t generation_ = 0;
};

// All thread ranks of one spawn. Keeps the meetings of all their groups, and who has failed or returned.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);

  int size() const { return static_cast<int>(state_.size()); }
  // The meeting of the group with these world ranks; every member gets the same one.
  std::shared_ptr<ThreadMeeting> meeting(const std::vector<int>& world_ranks);

  // Called once by each rank of a world that is found by name. False if a rank has left already, so that this
  // world is ending.
  bool join(int rank);
  // Called by a rank that ends: by an error, whose text every other rank will see, or by returning.
  void fail(int rank, std::exception_ptr error, const std::string& what);
  void finish(int rank);

  // The first failure: its rank (-1: none) and error.
  int failed_rank() const;
  std::exception_ptr failure() const;

 private:
  friend class ThreadMeeting;
  enum class RankState : std::uint8_t { running, returned, failed };
  // Why a wait for these ranks can never end; empty if it can.
  std::string obstacle(const std::vector<int>& world_ranks) const;
  void wake_all();

  mutable std::mutex mutex_;
  std::vector<RankState> state_;
  std::vector<bool> joined_;
  int failed_rank_ = -1;
  std::string failed_what_;
  std::exception_ptr failure_;
  std::map<std::vector<int>, std::shared_ptr<ThreadMeeting>> meetings_;
};

}  // namespace meshtorch
