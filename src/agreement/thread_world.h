// Ranks that are threads of one process: the memory in which their groups meet, and who of them is gone.
#pragma once

#include <chrono>
#include <exception>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

namespace meshtorch::internal {

class LocalCallLog;
class FlightRecord;
class GroupMeeting;
struct FailedCall;
struct MeetingMemory;
struct Wait;

// All thread ranks of one spawn.
class ThreadWorld {
 public:
  explicit ThreadWorld(int size);
  ~ThreadWorld();
  ThreadWorld(const ThreadWorld&) = delete;
  ThreadWorld& operator=(const ThreadWorld&) = delete;

  int size() const { return static_cast<int>(state_.size()); }
  // The part of one member, which has this number in the group, in the meetings of these world ranks. The
  // world must outlive it.
  std::unique_ptr<GroupMeeting> meeting(const std::vector<int>& world_ranks, int rank);

  // What this rank calls alike with the others though it sends nothing.
  const std::shared_ptr<LocalCallLog>& local_calls(int rank) const {
    return local_calls_[static_cast<std::size_t>(rank)];
  }

  // Called once by each rank of a world that is found by name. False if a rank has left already, so that this
  // world is ending.
  bool join(int rank);
  // Called by a rank that ends: by an error, whose text every other rank will see, or by returning.
  void fail(int rank, std::exception_ptr error, const std::string& what);
  void finish(int rank);
  // An operator of a rank that goes on failed: told to those who wait for it, until its next collective.
  void note_error(int rank, const std::string& text);
  // A call of an operator failed by the data of a rank, which may be another: told to all groups of this one
  // that it concerns, when they know of those before.
  void tell_failure(int rank, const FailedCall& failed, std::chrono::milliseconds timeout);

  // For whom a rank waits, in whatever group, as it tells those who wait for it; null: it goes on.
  void tell_wait(int rank, const Wait* wait);
  // Where those are that are late for this rank, and for whom they wait, a line each.
  std::string follow(int rank, const std::vector<int>& late) const;

  // The first failure: its rank (-1: none) and error.
  int failed_rank() const;
  std::exception_ptr failure() const;

 private:
  enum class RankState : std::uint8_t { running, returned, failed };
  struct FreeMemory {
    void operator()(MeetingMemory* memory) const;
  };
  // Why a wait for these ranks can never end; empty if it can.
  std::string why_unreachable(const std::vector<int>& world_ranks) const;
  // This rank's calls are over.
  void close_record(int rank, const std::string& reason);
  void wake_all();
  // Calls `visit` with the slot of the rank in each of its groups.
  template <class Visit>
  void visit_slots(int rank, const Visit& visit) const;

  mutable std::mutex mutex_;
  std::vector<RankState> state_;
  std::vector<bool> joined_;
  int failed_rank_ = -1;
  std::string failed_what_;
  int failed_by_ = -1;  // the rank whose failed call was what failed_rank_ failed with; -1: its own
  std::exception_ptr failure_;
  std::map<std::vector<int>, std::unique_ptr<MeetingMemory, FreeMemory>> meetings_;
  std::map<int, std::shared_ptr<FlightRecord>> records_;  // of the ranks that have made a group
  std::vector<std::shared_ptr<LocalCallLog>> local_calls_;
  std::vector<int> heard_of_;  // on which rank the latest call failed that each rank heard of; -1: none
  std::vector<int> threads_;   // as the system numbers them; 0: not known yet
};

}  // namespace meshtorch::internal
